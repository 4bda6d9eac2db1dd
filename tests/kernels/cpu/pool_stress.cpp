// The pool under stress, for the sanitizers: many threads, many tiny phases, jobs whose memory is gone the moment that
// they are over, threads that are late by whole jobs, pieces that fail.
#include "pool.h"

#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>

using namespace specdec;

namespace {

bool nothing(int) { return false; }

void expect(bool holds, const char* what) {
    if (holds) return;
    std::printf("%s\n", what);
    std::exit(1);
}

// Numbers that depend on all phases before them: a piece that is left out, done twice or done too early shows.
std::vector<u32> mixed(Pool& pool, unsigned seed, int num_phases) {
    std::mt19937 engine(seed);
    const size_t size = 1 + engine() % 40;
    std::vector<u32> now(size, 1), before(size);
    Job job;
    for (int i = 0; i < num_phases; i++) job.pieces.push_back(static_cast<u32>(i % 3 ? size : 1));
    job.work = [&](int, size_t phase, u32 piece) {
        if (phase % 3 == 0) {
            before = now;
        } else {
            const auto& from = phase % 3 == 1 ? before : now;
            auto& to = phase % 3 == 1 ? now : before;
            for (size_t i = 0; i < size; i++) to[piece] = 31 * to[piece] + from[i] + piece;
        }
    };
    pool.run(job);
    return now;
}

void many_threads_and_tiny_phases() {
    Pool one(1, nothing), many(8, nothing);
    for (unsigned seed = 0; seed < 60; seed++)
        expect(mixed(one, seed, 50) == mixed(many, seed, 50), "eight threads differ from one");
}

void pools_beside_each_other() {
    std::vector<std::thread> callers;
    for (unsigned caller = 0; caller < 3; caller++)
        callers.emplace_back([caller] {
            Pool one(1, nothing), own(3, nothing);
            for (unsigned seed = 0; seed < 20; seed++)
                expect(mixed(one, seed + caller, 30) == mixed(own, seed + caller, 30), "pools disturb each other");
        });
    for (auto& caller : callers) caller.join();
}

// Thread 1 is held while it waits, as if the system had taken it off its core, and the others go on without it.
void a_thread_that_is_stopped() {
    std::atomic<bool> held{false}, released{false};
    Pool one(1, nothing), pool(3, [&](int thread) {
        if (thread != 1) return false;
        held = true;
        while (!released) std::this_thread::yield();
        return false;
    });
    while (!held) std::this_thread::yield();
    for (unsigned seed = 0; seed < 40; seed++) {
        expect(mixed(one, seed, 20) == mixed(pool, seed, 20), "a late thread did harm");
        if (seed == 20) released = true;
    }
}

// A thread that is slow with its first piece leaves the others of its share to whoever is free.
void a_share_is_shared() {
    Pool pool(2, nothing);
    std::atomic<int> others{0};
    pool.run({{8}, [&](int, size_t, u32 piece) {
        if (piece != 4) others++;
        while (piece == 4 && others < 7) std::this_thread::yield();
    }});
    expect(others == 7, "pieces were left out");
}

void a_piece_that_fails() {
    Pool one(1, nothing), pool(4, nothing);
    for (u32 bad = 0; bad < 12; bad++) {
        std::atomic<int> later{0};
        bool caught = false;
        try {
            pool.run({{12, 3}, [&](int, size_t phase, u32 piece) {
                if (phase == 0 && piece == bad) throw std::runtime_error("bad piece");
                if (phase == 1) later++;
            }});
        } catch (const std::runtime_error&) {
            caught = true;
        }
        expect(caught && later == 0, "a failure went unnoticed");
        expect(mixed(one, bad, 10) == mixed(pool, bad, 10), "a failure outlives its job");
    }
}

}  // namespace

int main() {
    many_threads_and_tiny_phases();
    pools_beside_each_other();
    a_thread_that_is_stopped();
    a_share_is_shared();
    a_piece_that_fails();
    std::puts("done");
}

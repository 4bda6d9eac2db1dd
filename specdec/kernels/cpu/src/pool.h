// Threads that work on one job together: phase after phase, each cut into pieces that whoever is free claims.
//
// A phase is over when its pieces are done, not when all threads have come. A thread that the system took off its core
// holds up no more than the piece that it has claimed; when it is back it joins the phase that is current. Two laws make
// that safe:
//
// - A thread looks at a job only between claiming a piece and counting it as done, and a job is not over before all are
//   counted. Whoever is late finds nothing to claim, and looks at nothing but the pool's own words.
// - Phases are numbered through all jobs, and a claim names the phase: what is left of an older one cannot be claimed.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "vec.h"

namespace specdec {

inline constexpr int SPINS = 1000;  // of about 10 ns: more costs a busy machine more than it saves a quiet one

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

struct Job {
    std::vector<u32> pieces;  // of every phase, one at least
    std::function<void(int thread, size_t phase, u32 piece)> work;
};

class Pool {
  public:
    // `meanwhile` does something small and useful for a thread that waits, and says whether there was any. It must not
    // look at a job.
    Pool(int size, std::function<bool(int thread)> meanwhile)
        : size_(size), meanwhile_(std::move(meanwhile)), seats_(std::make_unique<Seat[]>(static_cast<size_t>(size))) {
        try {
            for (int i = 1; i < size; i++) threads_.emplace_back([this, i] { serve(i); });
        } catch (...) {
            stop();
            throw;
        }
    }

    ~Pool() { stop(); }

    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int size() const { return size_; }

    // Do a job, the caller being thread 0. If a piece throws, the others are left out and the caller gets the exception.
    void run(const Job& job) {
        if (job.pieces.empty()) return;
        const Place idle = place();
        job_ = &job, first_phase_ = idle.phase + 1;
        failed_.store(false, std::memory_order_relaxed);
        publish({idle.phase + 1, job.pieces[0]});
        for (Place at; (at = help(0)).pieces != 0;) await_change(at, 0);
        if (failed_.load(std::memory_order_relaxed)) std::rethrow_exception(std::exchange(failure_, nullptr));
    }

  private:
    // The current phase and its pieces: none between jobs. In one word, so that they are read together.
    struct Place {
        u64 phase;
        u32 pieces;

        static constexpr int BITS = 20;
        u64 word() const { return phase << BITS | pieces; }
        static Place of(u64 word) { return {word >> BITS, static_cast<u32>(word & ((1u << BITS) - 1))}; }
        bool operator==(const Place&) const = default;
    };

    // A thread claims pieces of its own share first, in their order, then what is left of the others'.
    struct Seat {
        alignas(64) std::atomic<u64> taken{0};  // how many pieces of its share are claimed in which phase, as a Place
    };

    Place place() const { return Place::of(place_.load(std::memory_order_acquire)); }

    u32 share_start(u32 pieces, int index) const {
        const u64 size = static_cast<u64>(size_);
        return static_cast<u32>((pieces * static_cast<u64>(index) + size - 1) / size);
    }

    // Do pieces of the current phase until none is left to claim.
    Place help(int index) {
        const Place at = place();
        u32 count = 0;
        for (u32 piece; claim(at, index, piece); count++) perform(at, index, piece);
        if (count > 0 && done_.fetch_add(count, std::memory_order_acq_rel) + count == at.pieces) advance(at);
        return at;
    }

    bool claim(const Place& at, int index, u32& piece) {
        for (int i = 0; i < size_; i++) {
            const int owner = index + i < size_ ? index + i : index + i - size_;
            const u32 first = share_start(at.pieces, owner), size = share_start(at.pieces, owner + 1) - first;
            if (size > 0 && take(seats_[owner].taken, at.phase, size, piece)) {
                piece += first;
                return true;
            }
        }
        return false;
    }

    // The next piece of a share of `size`. The word only ever grows, and as long as it says that a piece is left the
    // phase cannot be over: that the exchange succeeds is all that has to be known. What is read and written in a
    // phase is ordered by `place_`.
    static bool take(std::atomic<u64>& taken, u64 phase, u32 size, u32& piece) {
        u64 word = taken.load(std::memory_order_relaxed);
        while (true) {
            const Place before = Place::of(word);
            piece = before.phase < phase ? 0 : before.pieces;
            if (before.phase > phase || piece == size) return false;
            if (taken.compare_exchange_weak(word, Place{phase, piece + 1}.word(), std::memory_order_relaxed)) return true;
        }
    }

    void perform(const Place& at, int index, u32 piece) {
        if (failed_.load(std::memory_order_relaxed)) return;
        try {
            job_->work(index, at.phase - first_phase_, piece);
        } catch (...) {
            if (!failed_.exchange(true)) failure_ = std::current_exception();
        }
    }

    // The last piece of a phase is done. After this the job may be gone.
    void advance(const Place& at) {
        const u64 next = at.phase + 1 - first_phase_;
        done_.store(0, std::memory_order_relaxed);
        publish({at.phase + 1, next < job_->pieces.size() ? job_->pieces[next] : 0});
    }

    void publish(const Place& next) {
        place_.store(next.word(), std::memory_order_seq_cst);
        if (!asleep_.load(std::memory_order_seq_cst) || !asleep_.exchange(false, std::memory_order_seq_cst)) return;
        signal_.fetch_add(1, std::memory_order_seq_cst);
        signal_.notify_all();
    }

    // Wait until `at` is no longer current: briefly awake, then asleep.
    void await_change(const Place& at, int index) {
        for (int spins = 0; spins < SPINS;) {
            if (place() != at) return;
            if (!meanwhile_(index)) relax(), spins++;
        }
        while (true) {
            asleep_.store(true, std::memory_order_seq_cst);
            const u32 heard = signal_.load(std::memory_order_seq_cst);
            if (place_.load(std::memory_order_seq_cst) != at.word()) return;
            signal_.wait(heard, std::memory_order_seq_cst);
        }
    }

    void serve(int index) {
        while (true) {
            const Place at = help(index);
            if (stop_.load(std::memory_order_acquire)) return;
            await_change(at, index);
        }
    }

    void stop() {
        stop_.store(true, std::memory_order_release);
        publish({place().phase + 1, 0});
        for (auto& thread : threads_) thread.join();
    }

    const int size_;
    const std::function<bool(int)> meanwhile_;
    const std::unique_ptr<Seat[]> seats_;
    std::vector<std::thread> threads_;
    const Job* job_ = nullptr;
    u64 first_phase_ = 0;
    std::exception_ptr failure_;
    std::atomic<bool> failed_{false}, stop_{false};
    alignas(64) std::atomic<u64> place_{0};
    alignas(64) std::atomic<u32> done_{0};
    alignas(64) std::atomic<bool> asleep_{false};  // someone may be
    std::atomic<u32> signal_{0};
};

}  // namespace specdec

// Threads that work on one step together. They spin for microseconds where the next piece of work is about to come,
// sleep where it is not, and never spin while nothing runs.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "vec.h"

namespace specdec {

inline constexpr int SPINS = 300;  // of about 10 ns: more costs a busy machine more than it saves a quiet one

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Wait until `word` is no longer `old`: briefly awake, then asleep.
inline void await_change(const std::atomic<u32>& word, u32 old) {
    for (int i = 0; i < SPINS; i++) {
        if (word.load(std::memory_order_acquire) != old) return;
        relax();
    }
    while (word.load(std::memory_order_acquire) == old) word.wait(old, std::memory_order_acquire);
}

class Barrier {
  public:
    explicit Barrier(int size) : size_(static_cast<u32>(size)) {}

    void wait() {
        if (size_ == 1) return;
        const u32 round = round_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
            arrived_.store(0, std::memory_order_relaxed);
            round_.store(round + 1, std::memory_order_seq_cst);
            round_.notify_all();
        } else {
            await_change(round_, round);
        }
    }

  private:
    const u32 size_;
    alignas(64) std::atomic<u32> arrived_{0};
    alignas(64) std::atomic<u32> round_{0};
};

// `run` gives the same work to every thread, the caller being thread 0, and returns when all are done.
class Pool {
  public:
    explicit Pool(int size) : size_(size), barrier_(size) {
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
    Barrier& barrier() { return barrier_; }

    void run(const std::function<void(int)>& work) {
        work_ = &work;
        announce();
        work(0);
        barrier_.wait();
    }

  private:
    void stop() {
        stop_ = true;
        announce();
        for (auto& thread : threads_) thread.join();
    }

    void announce() {
        if (size_ == 1) return;
        jobs_.fetch_add(1, std::memory_order_seq_cst);
        jobs_.notify_all();
    }

    void serve(int index) {
        for (u32 seen = 0;; seen++) {
            await_change(jobs_, seen);
            if (stop_) return;
            (*work_)(index);
            barrier_.wait();
        }
    }

    const int size_;
    Barrier barrier_;
    std::vector<std::thread> threads_;
    const std::function<void(int)>* work_ = nullptr;
    bool stop_ = false;
    alignas(64) std::atomic<u32> jobs_{0};
};

}  // namespace specdec

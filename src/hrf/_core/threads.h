// Threads and scratch memory.
//
// Work runs in PyTorch's own OpenMP threads where Python found their entry point (set_team): they spin for some
// milliseconds after every operation, and a second pool would have to share the processor with them.
#pragma once

#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define HRF_FORBID(place, bytes) __asan_poison_memory_region(place, bytes)
#define HRF_ALLOW(place, bytes) __asan_unpoison_memory_region(place, bytes)
#else
#define HRF_FORBID(place, bytes)
#define HRF_ALLOW(place, bytes)
#endif

namespace hrf {

using Team = void (*)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel

extern Team team;

// Call function(task, thread) for all tasks, each once; `thread` counts from 0 and is never shared by two calls at once.
template <class Function>
void parallel(int64_t n_tasks, int threads, const Function& function) {
    if (threads <= 1 || n_tasks <= 1) {
        for (int64_t task = 0; task < n_tasks; ++task) function(task, 0);
        return;
    }
    struct Work {
        const Function& function;
        int64_t n_tasks;
        std::atomic<int64_t> next{0};
        std::atomic<int> arrived{0};
        void run() {
            const int thread = arrived++;
            for (int64_t task = next++; task < n_tasks; task = next++) function(task, thread);
        }
    } work{function, n_tasks};
    const auto run = [](void* data) { static_cast<Work*>(data)->run(); };
    if (team) {
        team(run, &work, threads, 0);
        return;
    }
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(run, &work);
    work.run();
    for (auto& other : others) other.join();
}

// Scratch memory that one call leaves to the next: the system hands out fresh pages one by one, each with an
// interruption, which took a fifth of the time of attention over a thousand tokens.
class Arena {
  public:
    ~Arena() { std::free(memory_); }

    // Forget all loans and make room. Buffers are aligned to a line of the cache.
    void reset(size_t bytes) {
        used_ = 0;
        if (bytes > size_ || (size_ > KEPT && bytes < size_ / 2)) {
            std::free(memory_);
            size_ = bytes + LINE;
            memory_ = static_cast<char*>(std::aligned_alloc(LINE, size_ + (-size_ & (LINE - 1))));
        }
        HRF_FORBID(memory_, size_);  // but for what is lent
    }

    // A place to come back to: what was lent after it may be lent again.
    size_t mark() const { return used_; }
    void back_to(size_t mark) { used_ = mark; }

    // Lend room for n numbers with arbitrary contents.
    template <class T>
    T* lend(size_t n) {
        char* place = memory_ + used_;
        used_ += room<T>(n);
        assert(used_ <= size_);
        HRF_FORBID(place, used_ - (place - memory_));
        HRF_ALLOW(place, n * sizeof(T));
        return reinterpret_cast<T*>(place);
    }

    template <class T>
    static size_t room(size_t n) {
        const size_t bytes = n * sizeof(T);
        return bytes + (-bytes & (LINE - 1)) + FENCE;
    }

  private:
    static constexpr size_t LINE = 64, KEPT = size_t(1) << 26;
#if defined(__SANITIZE_ADDRESS__)
    static constexpr size_t FENCE = LINE;  // between loans
#else
    static constexpr size_t FENCE = 0;
#endif
    char* memory_ = nullptr;
    size_t size_ = 0, used_ = 0;
};

}  // namespace hrf

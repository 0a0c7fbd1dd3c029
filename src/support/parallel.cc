// SPDX-License-Identifier: Apache-2.0
//
// One parallel loop for the whole library. Workers take indices from one counter, so indices begin in ascending order
// and the smallest unfinished one is always held by a running worker: that is what lets an index wait for smaller ones.
//
// The engine is OpenMP. Two things it does not do are done here. Its pool of threads does not survive fork(): in a
// child process the workers are plain threads, made for each call. And its barriers are invisible to the thread
// sanitizer: `entered` and `left` repeat, as atomics, the ordering that they give anyway.
#include "qkv/support/parallel.h"

#include <omp.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "support/cpu_limit.h"

namespace qkv {
namespace {

thread_local bool inside_region = false;
thread_local bool (*interrupt_wanted)() = nullptr;

bool is_interrupted() { return interrupt_wanted != nullptr && interrupt_wanted(); }

/// Marks the calling thread as a worker for the length of a scope.
class InsideRegion {
 public:
  InsideRegion() : before_(inside_region) { inside_region = true; }
  ~InsideRegion() { inside_region = before_; }
  InsideRegion(const InsideRegion&) = delete;
  InsideRegion& operator=(const InsideRegion&) = delete;

 private:
  bool before_;
};

struct Region {
  ParallelBody body;
  int64_t count;
  std::atomic<int64_t> next{0};
  std::atomic<bool> stopped{false};
  std::atomic<bool> interrupted{false};
  std::atomic<bool> entered{false};
  std::atomic<int> left{0};
  std::mutex failure_mutex;
  int64_t failed_index = 0;
  std::exception_ptr failure;

  Region(ParallelBody b, int64_t n) : body(b), count(n) {}

  void fail(int64_t index) {
    const std::lock_guard<std::mutex> lock(failure_mutex);
    if (!failure || index < failed_index) {
      failure = std::current_exception();
      failed_index = index;
    }
    stopped.store(true, std::memory_order_relaxed);
  }

  /// A worker's whole life. Every index below one that has begun has begun too, so whichever worker fails first, the
  /// smallest index that throws is always among those that ran.
  void work(int worker) noexcept {
    while (!entered.load(std::memory_order_acquire)) std::this_thread::yield();
    const InsideRegion mark;
    while (!stopped.load(std::memory_order_relaxed)) {
      // Asked before an index is taken: one that has been taken runs, since others may wait for it.
      if (is_interrupted()) {
        interrupted.store(true, std::memory_order_relaxed);
        stopped.store(true, std::memory_order_relaxed);
        break;
      }
      const int64_t index = next.fetch_add(1, std::memory_order_relaxed);
      if (index >= count) break;
      try {
        body(index, worker);
      } catch (...) {
        fail(index);
      }
    }
    left.fetch_add(1, std::memory_order_release);
  }
};

std::atomic<bool> in_forked_child{false};

/// The library's thread pool must be known to be dead before the first parallel call of a child process.
[[maybe_unused]] const int fork_handler =
    pthread_atfork(nullptr, nullptr, [] { in_forked_child.store(true, std::memory_order_relaxed); });

#if defined(__GNUC__) && !defined(__clang__)
__attribute__((no_sanitize("thread"), noinline))
#endif
void run_openmp(Region* region, int workers) {
#pragma omp parallel num_threads(workers) default(none) firstprivate(region)
  region->work(omp_get_thread_num());
}

void run_threads(Region* region, int workers) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(workers - 1));
  try {
    for (int worker = 1; worker < workers; ++worker) threads.emplace_back([=] { region->work(worker); });
  } catch (const std::exception&) {  // no thread, or no memory for one
    // Fewer workers do the same work.
  }
  region->work(0);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

InterruptCheck::InterruptCheck(bool (*wanted)()) : before_(interrupt_wanted) { interrupt_wanted = wanted; }

InterruptCheck::~InterruptCheck() { interrupt_wanted = before_; }

int available_threads() {
  static const int threads = [] {
    const int affinity = affinity_cpus();
    const int quota = cgroup_cpus("/proc/self/cgroup", "/sys/fs/cgroup");
    return quota == 0 ? affinity : std::min(affinity, quota);
  }();
  return threads;
}

int parallel_workers(int64_t count, int threads) {
  if (count <= 1 || threads == 1 || inside_region || omp_in_parallel() != 0) return 1;
  const int64_t wanted = threads > 0 ? threads : available_threads();
  return static_cast<int>(std::min(count, wanted));
}

void parallel_for(int64_t count, int threads, ParallelBody body) {
  const int workers = parallel_workers(count, threads);
  if (workers == 1) {
    const bool nested = inside_region;  // then the outer loop asks: others may wait for the index it is at
    const InsideRegion mark;
    for (int64_t index = 0; index < count; ++index) {
      if (!nested && is_interrupted()) throw Interrupted();
      body(index, 0);
    }
    return;
  }
  Region region(body, count);
  region.entered.store(true, std::memory_order_release);
  if (in_forked_child.load(std::memory_order_relaxed)) {
    run_threads(&region, workers);
  } else {
    run_openmp(&region, workers);
  }
  static_cast<void>(region.left.load(std::memory_order_acquire));
  if (region.failure) std::rethrow_exception(region.failure);
  if (region.interrupted.load(std::memory_order_relaxed)) throw Interrupted();
}

}  // namespace qkv

// SPDX-License-Identifier: Apache-2.0
#include "qkv/support/parallel.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace qkv {
namespace {

/// Every index once, every worker number in range.
void expect_covers(int64_t count, int threads) {
  std::vector<int> seen(static_cast<size_t>(count), 0);
  std::atomic<bool> workers_in_range{true};
  const int workers = parallel_workers(count, threads);
  parallel_for(count, threads, [&](int64_t index, int worker) {
    seen[static_cast<size_t>(index)] += 1;
    if (worker < 0 || worker >= workers) workers_in_range = false;
  });
  EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), int64_t{0}), count) << count << " indices, " << threads;
  for (const int times : seen) EXPECT_EQ(times, 1);
  EXPECT_TRUE(workers_in_range);
}

TEST(parallel, every_index_once_for_any_count_and_threads) {
  for (const int64_t count : {0, 1, 2, 3, 7, 64, 1000}) {
    for (const int threads : {0, 1, 2, 3, 8, 33}) expect_covers(count, threads);
  }
}

TEST(parallel, workers_are_the_threads_asked_for_but_no_more_than_indices) {
  EXPECT_EQ(parallel_workers(0, 8), 1);
  EXPECT_EQ(parallel_workers(1, 8), 1);
  EXPECT_EQ(parallel_workers(3, 8), 3);
  EXPECT_EQ(parallel_workers(100, 8), 8);
  EXPECT_EQ(parallel_workers(100, 1), 1);
  EXPECT_EQ(parallel_workers(int64_t{1} << 40, 4096), 4096);
  EXPECT_EQ(parallel_workers(int64_t{1} << 40, 0), available_threads());
  EXPECT_GE(available_threads(), 1);
}

std::atomic<int> interrupt_after{0};

TEST(parallel, an_interrupt_stops_between_indices_and_leaves_none_that_began_unfinished) {
  for (const int threads : {1, 3}) {
    interrupt_after = 40;
    std::atomic<int> begun{0};
    std::atomic<int> ended{0};
    const InterruptCheck check([] { return interrupt_after.fetch_sub(1) <= 0; });
    const auto body = [&](int64_t, int) {
      begun.fetch_add(1);
      std::this_thread::yield();
      ended.fetch_add(1);
    };
    EXPECT_THROW(parallel_for(int64_t{1} << 40, threads, body), Interrupted);
    EXPECT_GE(begun.load(), 40);
    EXPECT_EQ(begun.load(), ended.load());
  }
}

TEST(parallel, an_interrupt_check_ends_with_its_scope) {
  {
    const InterruptCheck outer([] { return true; });
    {
      const InterruptCheck inner([] { return false; });
      parallel_for(5, 2, [](int64_t, int) {});
    }
    EXPECT_THROW(parallel_for(5, 2, [](int64_t, int) {}), Interrupted);
  }
  parallel_for(5, 2, [](int64_t, int) {});
}

TEST(parallel, more_threads_than_cpus_are_all_started) {
  // Each index waits until as many workers as indices are inside: only that many threads can end it.
  const int workers = 2 * available_threads() + 3;
  std::atomic<int> inside{0};
  std::mutex mutex;
  std::set<int> numbers;
  parallel_for(workers, workers, [&](int64_t, int worker) {
    inside.fetch_add(1);
    while (inside.load() < workers) std::this_thread::yield();
    const std::lock_guard<std::mutex> lock(mutex);
    numbers.insert(worker);
  });
  EXPECT_EQ(numbers.size(), static_cast<size_t>(workers));
}

TEST(parallel, an_index_may_wait_for_any_smaller_one) {
  constexpr int64_t kCount = 500;
  for (const int threads : {2, 3, 8}) {
    std::vector<std::atomic<int>> done(kCount);
    std::vector<int64_t> order;  // written by index n only after n - 1 has finished
    parallel_for(kCount, threads, [&](int64_t index, int) {
      while (index > 0 && done[static_cast<size_t>(index - 1)].load(std::memory_order_acquire) == 0) {
        std::this_thread::yield();
      }
      order.push_back(index);
      done[static_cast<size_t>(index)].store(1, std::memory_order_release);
    });
    ASSERT_EQ(order.size(), static_cast<size_t>(kCount));
    for (int64_t i = 0; i < kCount; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  }
}

TEST(parallel, what_workers_write_is_seen_after_the_call_and_what_was_written_before_is_seen_by_them) {
  std::vector<int64_t> input(4096);
  std::vector<int64_t> output(4096);
  for (int round = 0; round < 50; ++round) {
    std::iota(input.begin(), input.end(), round);
    parallel_for(64, 3, [&](int64_t block, int) {
      for (size_t i = 0; i < 64; ++i) {
        const size_t at = static_cast<size_t>(block) * 64 + i;
        output[at] = 2 * input[at];
      }
    });
    for (size_t i = 0; i < output.size(); ++i) ASSERT_EQ(output[i], 2 * (static_cast<int64_t>(i) + round));
  }
}

TEST(parallel, the_exception_of_the_smallest_index_that_threw_is_rethrown_and_the_rest_is_skipped) {
  for (const int threads : {1, 2, 3, 8}) {
    std::atomic<int64_t> begun{0};
    std::string message;
    try {
      parallel_for(100000, threads, [&](int64_t index, int) {
        begun.fetch_add(1);
        // 11 is slow, so that with two threads 12 and later ones throw before it does.
        if (index == 11) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        if (index >= 11) throw std::runtime_error(std::to_string(index));
      });
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
    EXPECT_EQ(message, "11") << threads << " threads";
    EXPECT_LE(begun.load(), 11 + threads) << "a worker went on after a failure";
    expect_covers(50, threads);  // the next call is as good as new
  }
}

TEST(parallel, nested_calls_run_serially_in_the_worker_that_makes_them) {
  for (const int threads : {1, 2, 3}) {
    std::atomic<int> wrong{0};
    std::atomic<int64_t> inner{0};
    parallel_for(8, threads, [&](int64_t, int) {
      if (parallel_workers(100, 4) != 1) wrong.fetch_add(1);
      const std::thread::id outer = std::this_thread::get_id();
      int64_t expected = 0;
      parallel_for(10, 4, [&](int64_t index, int worker) {
        if (worker != 0 || index != expected++ || std::this_thread::get_id() != outer) wrong.fetch_add(1);
        inner.fetch_add(1);
      });
    });
    EXPECT_EQ(wrong.load(), 0);
    EXPECT_EQ(inner.load(), 80);
  }
  EXPECT_GT(parallel_workers(100, 4), 1) << "the mark of a region must not outlive it";
}

/// A program's own OpenMP region. The thread sanitizer cannot see how OpenMP hands over its arguments.
#if defined(__GNUC__) && !defined(__clang__)
__attribute__((no_sanitize("thread"), noinline))
#endif
void run_in_openmp(void (*body)()) {
#pragma omp parallel num_threads(2) default(none) firstprivate(body)
  body();
}

std::atomic<int> openmp_failures{0};

TEST(parallel, a_call_inside_somebody_elses_openmp_region_runs_serially) {
  run_in_openmp([] {
    if (omp_get_num_threads() != 2) return;
    if (parallel_workers(100, 4) != 1) openmp_failures.fetch_add(1);
    int64_t sum = 0;
    parallel_for(100, 4, [&](int64_t index, int) { sum += index; });
    if (sum != 4950) openmp_failures.fetch_add(1);
  });
  EXPECT_EQ(openmp_failures.load(), 0);
}

TEST(parallel, several_threads_of_the_caller_may_call_at_once) {
  std::vector<std::thread> callers;
  std::array<std::atomic<int64_t>, 4> sums{};
  for (size_t caller = 0; caller < sums.size(); ++caller) {
    callers.emplace_back([&, caller] {
      for (int round = 0; round < 20; ++round) {
        parallel_for(100, 3, [&](int64_t index, int) { sums[caller].fetch_add(index); });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const auto& sum : sums) EXPECT_EQ(sum.load(), 20 * 4950);
}

/// Runs a parallel call in a forked child and says how it ended; a hanging child is ended by its alarm.
int parallel_exit_code_of_child(int threads, int generations) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    if (generations > 1) _exit(parallel_exit_code_of_child(threads, generations - 1));
    std::atomic<int64_t> sum{0};
    std::atomic<int> inside{0};
    for (int round = 0; round < 3; ++round) {
      inside = 0;
      parallel_for(threads, threads, [&](int64_t index, int) {
        inside.fetch_add(1);
        while (inside.load() < threads) std::this_thread::yield();  // proves that all are at work at once
        sum.fetch_add(index);
      });
    }
    bool caught = false;
    try {
      parallel_for(100, threads, [](int64_t index, int) {
        if (index == 7) throw std::runtime_error("7");
      });
    } catch (const std::runtime_error&) {
      caught = true;
    }
    _exit(caught && sum.load() == 3 * threads * (threads - 1) / 2 ? 0 : 1);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// OpenMP's pool of threads does not exist in a child process; using it hangs for ever.
TEST(parallel, works_in_a_process_forked_after_a_parallel_call) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer ends a forked child that starts threads";
#endif
  expect_covers(100, 3);
  for (const int threads : {2, 3, 8}) EXPECT_EQ(parallel_exit_code_of_child(threads, 1), 0) << threads << " threads";
  EXPECT_EQ(parallel_exit_code_of_child(2, 3), 0) << "a child of a child of a child";
  expect_covers(100, 3);  // and the parent goes on
}

TEST(parallel, works_in_a_process_forked_inside_a_region) {
  std::atomic<int> failures{0};
  parallel_for(4, 2, [&](int64_t index, int) {
    if (index != 2) return;
    const pid_t child = fork();
    if (child == 0) {
      alarm(30);
      int64_t sum = 0;
      parallel_for(100, 4, [&](int64_t i, int) { sum += i; });  // still inside a region: serial
      _exit(sum == 4950 ? 0 : 1);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) failures.fetch_add(1);
  });
  EXPECT_EQ(failures.load(), 0);
}

}  // namespace
}  // namespace qkv

// SPDX-License-Identifier: Apache-2.0
#include "timing.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <set>
#include <thread>

#include "memory.h"
#include "qkv/support/error.h"

namespace qkv::bench {
namespace {

// Far above the clock's resolution and a fork-join, far below a time slice's effect on the median.
constexpr double kSampleSeconds = 0.003;

/// Time that the calling thread has run: stands still while others have the CPU.
double thread_now() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Threads of a pool spin for some milliseconds after a call before they sleep; nobody shall compute beside them.
void let_threads_sleep() { std::this_thread::sleep_for(std::chrono::milliseconds(10)); }

Sample sample_here(const Run& run) {
  if (run.calls_per_sample > 1) run.call();  // what ran before has taken the caches and put threads to sleep
  const double start = now(), cpu_start = thread_now();
  for (int64_t c = 0; c < run.calls_per_sample; ++c) run.call();
  const double calls = static_cast<double>(run.calls_per_sample);
  return {(now() - start) / calls, (thread_now() - cpu_start) / calls};
}

/// False when a peer failed: the run then has no more samples, and says why.
bool sample_once(Run& run, Sample& sample) {
  if (!run.remote) {
    sample = sample_here(run);
    return true;
  }
  try {
    sample = run.remote(run.calls_per_sample);
    return true;
  } catch (const Error& error) {
    run.refused = error.what();
    run.seconds.clear();
    return false;
  }
}

void warm_up(Run& run) {
  if (run.call) run.memory_growth = peak_growth(run.call);
  Sample sample;
  if (!sample_once(run, sample)) return;
  const double seconds = std::max(1e-8, sample.seconds);
  run.calls_per_sample = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(kSampleSeconds / seconds)));
}

void time_run(Run& run, const MachineMeter& meter) {
  if (run.bound_by_reading()) {
    const int64_t bytes = static_cast<int64_t>(run.work.read_bytes);
    const int repetitions =
        static_cast<int>(std::clamp<int64_t>((int64_t{256} << 20) / std::max<int64_t>(1, bytes), 3, 20));
    run.read.push_back(meter.read_bandwidth(run.threads, bytes, repetitions));
    if (run.remote) let_threads_sleep();
  }
  Sample sample;
  if (!sample_once(run, sample)) return;
  run.seconds.push_back(sample.seconds);
  run.cpu_seconds.push_back(sample.cpu_seconds);
}

void measure_machine(const std::vector<Run>& runs, const MachineMeter& meter, MachineSeries& series) {
  std::set<std::pair<DType, int>> kinds;
  std::set<int> counts = {1};
  for (const Run& run : runs) {
    counts.insert(run.threads);
    kinds.insert({run.spec().dtype, run.threads});
    if (run.spec().dtype != DType::f64) kinds.insert({DType::f32, run.threads});
  }
  for (const auto& [dtype, threads] : kinds) {
    if (dtype == DType::f16) continue;  // computed in f32
    auto& values = dtype == DType::f64 ? series.f64 : dtype == DType::bf16 ? series.bf16 : series.f32;
    const double rate = meter.multiply_add(dtype, threads);
    if (rate > 0) values[threads].push_back(rate);
  }
  for (const int threads : counts) {
    series.read[threads].push_back(meter.read_bandwidth(threads));
    series.fork_join[threads].push_back(meter.fork_join(threads));
  }
}

}  // namespace

std::string Run::label() const { return concat(spec().name, '/', name(mode), '/', threads); }

std::vector<Run> runs_of(const std::shared_ptr<Subject>& subject, const std::vector<int>& threads) {
  std::vector<Run> runs;
  for (const Mode mode : subject->spec.modes) {
    for (const int count : threads) {
      Run run;
      run.subject = subject;
      run.mode = mode;
      run.threads = count;
      run.work = subject->work();
      run.call = subject->call(mode, count);
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

MachineSeries time_runs(std::vector<Run>& runs, const MachineMeter& meter, const Limits& limits) {
  MachineSeries series;
  const double start = now();
  const bool peers = std::any_of(runs.begin(), runs.end(), [](const Run& run) { return run.engine != "qkv"; });
  for (Run& run : runs) {
    progress(concat("warming up ", run.label(), " of ", run.engine));
    if (run.refused.empty()) warm_up(run);
  }
  for (int round = 0; round < limits.repetitions; ++round) {
    const double begin = now();
    progress(concat("round ", round + 1, " of ", limits.repetitions));
    measure_machine(runs, meter, series);
    for (Run& run : runs) {
      if (!run.refused.empty()) continue;
      if (peers) let_threads_sleep();
      time_run(run, meter);
    }
    const double end = now();
    if (end - start + (end - begin) > limits.seconds) break;
  }
  progress("");
  return series;
}

void progress(const std::string& what) {
  static const bool watched = isatty(STDERR_FILENO) == 1;
  if (watched) std::cerr << '\r' << what << "\033[K" << std::flush;
}

Spread spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {  // linear between the neighbours
    const double position = share * static_cast<double>(values.size() - 1);
    const size_t below = static_cast<size_t>(position);
    const size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (position - static_cast<double>(below)) * (values[above] - values[below]);
  };
  return {at(0.5), at(0.1), at(0.9)};
}

double median_ratio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (size_t r = 0; r < std::min(a.size(), b.size()); ++r) ratios.push_back(a[r] / b[r]);
  return spread(std::move(ratios)).median;
}

}  // namespace qkv::bench

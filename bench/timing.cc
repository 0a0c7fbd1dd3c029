// SPDX-License-Identifier: Apache-2.0
#include "timing.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <set>

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

struct Sample {
  double seconds = 0, cpu_seconds = 0;
};

Sample sample_once(const Run& run) {
  const double start = now(), cpu_start = thread_now();
  for (int64_t c = 0; c < run.calls_per_sample; ++c) run.call();
  const double calls = static_cast<double>(run.calls_per_sample);
  return {(now() - start) / calls, (thread_now() - cpu_start) / calls};
}

void warm_up(Run& run) {
  run.memory_growth = peak_growth(run.call);
  const double seconds = std::max(1e-8, sample_once(run).seconds);
  run.calls_per_sample = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(kSampleSeconds / seconds)));
}

void measure_machine(const std::vector<Run>& runs, const MachineMeter& meter, MachineSeries& series) {
  std::set<std::pair<bool, int>> kinds;
  std::set<int> counts = {1};
  for (const Run& run : runs) {
    kinds.insert({run.spec().dtype == DType::f64, run.threads});
    counts.insert(run.threads);
  }
  for (const auto& [wide, threads] : kinds) {
    auto& values = wide ? series.f64 : series.f32;
    values[threads].push_back(meter.multiply_add(wide ? DType::f64 : DType::f32, threads));
  }
  for (const int threads : counts) {
    series.read[threads].push_back(meter.read_bandwidth(threads));
    series.fork_join[threads].push_back(meter.fork_join(threads));
  }
}

}  // namespace

std::string Run::label() const { return concat(spec().name, '/', name(mode), '/', threads); }

std::vector<Run> runs_of(const std::shared_ptr<Inputs>& inputs, const Work& work, const std::vector<int>& threads) {
  std::vector<Run> runs;
  for (const Mode mode : inputs->spec.modes) {
    for (const int count : threads) {
      Run run;
      run.inputs = inputs;
      run.mode = mode;
      run.threads = count;
      run.work = work;
      AttentionOptions options = inputs->options;
      options.threads = count;
      Inputs* in = inputs.get();
      if (mode == Mode::forward) {
        run.call = [in, options] {
          attention_forward(in->q.view, in->k.view, in->v.view, options, in->out.view, in->lse.view);
        };
      } else if (mode == Mode::backward) {
        const auto state = std::make_shared<AttentionState>(
            attention_forward(in->q.view, in->k.view, in->v.view, options, in->out.view));
        run.call = [in, options, state] {
          attention_backward(in->q.view, in->k.view, in->v.view, options, *state, in->d_out.view, in->gradients);
        };
      } else {
        run.call = [in, options] {
          const AttentionState state = attention_forward(in->q.view, in->k.view, in->v.view, options, in->out.view);
          attention_backward(in->q.view, in->k.view, in->v.view, options, state, in->d_out.view, in->gradients);
        };
      }
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

MachineSeries time_runs(std::vector<Run>& runs, const MachineMeter& meter, const Limits& limits) {
  MachineSeries series;
  const double start = now();
  for (Run& run : runs) {
    progress("warming up " + run.label());
    warm_up(run);
  }
  for (int round = 0; round < limits.repetitions; ++round) {
    const double begin = now();
    progress(concat("round ", round + 1, " of ", limits.repetitions));
    measure_machine(runs, meter, series);
    for (Run& run : runs) {
      const Sample sample = sample_once(run);
      run.seconds.push_back(sample.seconds);
      run.cpu_seconds.push_back(sample.cpu_seconds);
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

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "machine.h"
#include "subject.h"

namespace qkv::bench {

/// Of one call.
struct Sample {
  double seconds = 0, cpu_seconds = 0;
};

/// One timed call: a case, a mode, a number of threads, and who computes it.
struct Run {
  std::string engine = "qkv";
  std::shared_ptr<Subject> subject;
  Mode mode = Mode::forward;
  int threads = 1;
  Work work;
  Verdict verdict;
  std::function<void()> call;                   ///< in this process, or
  std::function<Sample(int64_t calls)> remote;  ///< in another one, which takes the time itself
  std::string how;                              ///< which of its ways another library takes
  std::string refused;                          ///< why there is nothing to time; empty when there is

  int64_t calls_per_sample = 1;          ///< short calls are timed many at a time
  std::vector<double> seconds;           ///< of one call, one entry a round
  std::vector<double> cpu_seconds;       ///< the same on the calling thread's own clock; meant for one thread
  std::vector<double> read;              ///< with few rows: bytes a second of reading as much as the call must, then
  std::optional<int64_t> memory_growth;  ///< bytes, of the first call

  const Case& spec() const { return subject->spec; }
  std::string label() const;  ///< "name/forward/2"
  /// With so few rows a call is bound by reading keys and values, or weights, not by products; fewer bytes are
  /// overhead.
  bool bound_by_reading() const { return mode == Mode::forward && work.few_rows <= 16 && work.read_bytes >= 1048576; }
};

/// The runs of a case, without results.
std::vector<Run> runs_of(const std::shared_ptr<Subject>& subject, const std::vector<int>& threads);

/// What the machine could do, measured once a round between the runs. Keys: number of threads.
struct MachineSeries {
  std::map<int, std::vector<double>> f32, f64;   ///< operations a second
  std::map<int, std::vector<double>> bf16;       ///< of bf16 dot products; empty where there are none
  std::map<int, std::vector<double>> read;       ///< bytes a second
  std::map<int, std::vector<double>> fork_join;  ///< seconds
  const std::map<int, std::vector<double>>& multiply_add(DType dtype) const { return dtype == DType::f64 ? f64 : f32; }
};

struct Limits {
  int repetitions = 15;
  double seconds = 240;  ///< from the first warm-up; no round begins that is expected to end later; one always runs
};

/// Measures memory and warms up, then times every run once a round, round after round: whatever slows the machine for a
/// while meets all of them. Returns what the machine could do meanwhile.
MachineSeries time_runs(std::vector<Run>& runs, const MachineMeter& meter, const Limits& limits);

/// Shows what is going on, on a terminal; prints nothing elsewhere.
void progress(const std::string& what);

/// Order statistics; the vectors are not empty.
struct Spread {
  double median = 0, p10 = 0, p90 = 0;
};
Spread spread(std::vector<double> values);
/// Median over rounds of a / b.
double median_ratio(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace qkv::bench

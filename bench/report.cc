// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <algorithm>

namespace qkv::bench {
namespace {

using nlohmann::json;

json to_json(const Spread& value) { return {{"median", value.median}, {"p10", value.p10}, {"p90", value.p90}}; }

double best(const std::vector<double>& rates) { return *std::max_element(rates.begin(), rates.end()); }

json by_threads(const std::map<int, std::vector<double>>& series) {
  json result = json::object();
  for (const auto& [threads, values] : series) result[std::to_string(threads)] = to_json(spread(values));
  return result;
}

json rates_by_threads(const std::map<int, std::vector<double>>& series) {
  json result = by_threads(series);
  for (const auto& [threads, values] : series) result[std::to_string(threads)]["best"] = best(values);
  return result;
}

const Run* find(const std::vector<Run>& runs, const std::string& engine, const std::string& name, Mode mode,
                int threads) {
  const auto found = std::find_if(runs.begin(), runs.end(), [&](const Run& run) {
    return run.engine == engine && run.spec().name == name && run.mode == mode && run.threads == threads;
  });
  return found == runs.end() || found->seconds.empty() ? nullptr : &*found;
}

/// Median over rounds of a's time over b's: CPU time on one thread, where others may have had the CPU meanwhile.
double time_ratio(const Run& a, const Run& b) {
  return a.threads == 1 ? median_ratio(a.cpu_seconds, b.cpu_seconds) : median_ratio(a.seconds, b.seconds);
}

/// Shares of what bounds the call, each against the best that the machine did.
void add_shares(const Report& report, const Run& run, json& entry) {
  const double rate = run.work.operations(run.mode) / spread(run.seconds).median;
  const double cpu_rate = run.work.operations(run.mode) / spread(run.cpu_seconds).median;
  const MachineSeries& machine = report.machine;
  const double peak = best(machine.multiply_add(run.spec().dtype).at(run.threads));
  entry["operations_per_second"] = rate;
  entry["share_of_peak"] = rate / peak;
  if (run.threads == 1) entry["share_of_peak_cpu"] = cpu_rate / peak;
  if (run.spec().dtype == DType::bf16 && machine.bf16.count(run.threads) == 1) {
    entry["share_of_bf16_peak"] = (run.threads == 1 ? cpu_rate : rate) / best(machine.bf16.at(run.threads));
  }
  if (run.bound_by_reading()) {
    std::vector<double> rates;
    for (const double seconds : run.threads == 1 ? run.cpu_seconds : run.seconds) {
      rates.push_back(run.work.read_bytes / seconds);
    }
    entry["bytes_per_second"] = spread(rates).median;
    entry["share_of_bandwidth"] = median_ratio(rates, run.read);
  }
}

void add_timing(const Report& report, const Run& run, json& entry) {
  const double work = run.work.operations(run.mode);
  entry["seconds"] = to_json(spread(run.seconds));
  entry["samples"] = run.seconds.size();
  entry["calls_per_sample"] = run.calls_per_sample;
  if (run.threads == 1) entry["cpu_seconds"] = to_json(spread(run.cpu_seconds));
  add_shares(report, run, entry);
  const std::string& name = run.spec().name;
  if (const Run* one = find(report.runs, run.engine, name, run.mode, 1); one != nullptr && run.threads > 1) {
    entry["speedup"] = median_ratio(one->seconds, run.seconds);
  }
  if (const Run* ours = find(report.runs, "qkv", name, run.mode, run.threads); ours != nullptr && run.engine != "qkv") {
    entry["time_over_qkv"] = time_ratio(run, *ours);
  }
  if (run.spec().against.empty()) return;
  const Run* other = find(report.runs, run.engine, run.spec().against, run.mode, run.threads);
  if (other == nullptr) return;
  const double ratio = time_ratio(run, *other);
  entry["against"] = {{"name", run.spec().against}, {"time", ratio}};
  if (work > 0) entry["against"]["time_per_operation"] = ratio * other->work.operations(run.mode) / work;
}

}  // namespace

json to_json(const Report& report) {
  json machine = {{"cpu", report.facts.cpu},
                  {"target", report.facts.target},
                  {"compiler", report.facts.compiler},
                  {"build", report.facts.build},
                  {"threads", report.facts.threads},
                  {"multiply_add_f32", rates_by_threads(report.machine.f32)},
                  {"multiply_add_f64", rates_by_threads(report.machine.f64)},
                  {"dot_bf16", rates_by_threads(report.machine.bf16)},
                  {"read", rates_by_threads(report.machine.read)},
                  {"read_buffer_bytes", report.read_buffer_bytes},
                  {"fork_join", by_threads(report.machine.fork_join)}};
  json runs = json::array();
  for (const Run& run : report.runs) {
    const Case& spec = run.spec();
    json entry = {{"name", spec.name},       {"case", spec.line},       {"engine", run.engine},
                  {"mode", name(run.mode)},  {"threads", run.threads},  {"operations", run.work.operations(run.mode)},
                  {"pairs", run.work.pairs}, {"memory_growth", nullptr}};
    if (!run.how.empty()) entry["how"] = run.how;
    if (!run.refused.empty()) entry["refused"] = run.refused;
    if (run.memory_growth) entry["memory_growth"] = *run.memory_growth;
    entry["check"] = {{"checked", run.verdict.checked},
                      {"passed", run.verdict.passed},
                      {"forward", {{"ratio", run.verdict.forward.value}, {"what", run.verdict.forward.what}}},
                      {"backward", {{"ratio", run.verdict.backward.value}, {"what", run.verdict.backward.what}}},
                      {"scope", run.verdict.scope},
                      {"failure", run.verdict.failure}};
    if (!run.seconds.empty()) add_timing(report, run, entry);
    runs.push_back(std::move(entry));
  }
  json peers = json::array();
  for (const PeerFacts& peer : report.peers) {
    peers.push_back({{"engine", peer.engine}, {"version", peer.version}, {"absent", peer.absent}});
  }
  return {{"qkv", report.facts.version},
          {"machine", std::move(machine)},
          {"peers", std::move(peers)},
          {"runs", std::move(runs)}};
}

}  // namespace qkv::bench

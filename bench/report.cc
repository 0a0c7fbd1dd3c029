// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <algorithm>
#include <cstdio>
#include <sstream>

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

const Run* find(const std::vector<Run>& runs, const std::string& name, const Run& like, int threads) {
  const auto found = std::find_if(runs.begin(), runs.end(), [&](const Run& run) {
    return run.engine == like.engine && run.spec().name == name && run.mode == like.mode && run.threads == threads;
  });
  return found == runs.end() || found->seconds.empty() ? nullptr : &*found;
}

void add_timing(const Report& report, const Run& run, json& entry) {
  const double work = operations(run.work, run.mode);
  const double seconds = spread(run.seconds).median;
  const double peak = best(report.machine.multiply_add(run.spec().dtype).at(run.threads));
  const double bandwidth = best(report.machine.read.at(run.threads));
  entry["seconds"] = to_json(spread(run.seconds));
  entry["samples"] = run.seconds.size();
  entry["calls_per_sample"] = run.calls_per_sample;
  entry["operations_per_second"] = work / seconds;
  entry["share_of_peak"] = work / seconds / peak;
  if (run.threads == 1) {
    entry["cpu_seconds"] = to_json(spread(run.cpu_seconds));
    entry["share_of_peak_cpu"] = work / spread(run.cpu_seconds).median / peak;
  }
  entry["key_value_bytes_per_second"] = run.work.key_value_bytes / seconds;
  entry["share_of_bandwidth"] = run.work.key_value_bytes / seconds / bandwidth;
  if (const Run* one = find(report.runs, run.spec().name, run, 1); one != nullptr && run.threads > 1) {
    entry["speedup"] = median_ratio(one->seconds, run.seconds);
  }
  if (run.spec().against.empty()) return;
  if (const Run* other = find(report.runs, run.spec().against, run, run.threads); other != nullptr) {
    const double ratio = run.threads == 1 ? median_ratio(run.cpu_seconds, other->cpu_seconds)
                                          : median_ratio(run.seconds, other->seconds);
    entry["against"] = {{"name", run.spec().against}, {"time", ratio}};
    if (work > 0) entry["against"]["time_per_operation"] = ratio * operations(other->work, run.mode) / work;
  }
}

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), pattern, value);
  return text;
}

std::string duration(double seconds) {
  if (seconds >= 1) return format("%.3g s", seconds);
  return seconds >= 1e-3 ? format("%.3g ms", seconds * 1e3) : format("%.3g us", seconds * 1e6);
}

std::string mebibytes(double bytes) { return format("%.1f MiB", bytes / 1048576.0); }

std::string spread_of(const json& value, double scale, const char* pattern) {
  return format(pattern, value["median"].get<double>() * scale) + " (" +
         format(pattern, value["p10"].get<double>() * scale) + " to " +
         format(pattern, value["p90"].get<double>() * scale) + ")";
}

void machine_rows(const json& machine, std::ostringstream& text) {
  struct Row {
    const char *key, *title, *unit;
    double scale;
  };
  const Row rows[] = {{"multiply_add_f32", "FMA peak f32", "GFLOP/s", 1e-9},
                      {"multiply_add_f64", "FMA peak f64", "GFLOP/s", 1e-9},
                      {"read", "read bandwidth", "GB/s", 1e-9},
                      {"fork_join", "fork and join", "us", 1e6}};
  text << "| limit | threads | median (p10 to p90) | best |\n|---|---|---|---|\n";
  for (const Row& row : rows) {
    for (const auto& [threads, value] : machine[row.key].items()) {
      text << "| " << row.title << ", " << row.unit << " | " << threads << " | " << spread_of(value, row.scale, "%.4g")
           << " | " << (value.contains("best") ? format("%.4g", value["best"].get<double>() * row.scale) : "")
           << " |\n";
    }
  }
}

std::string check_cell(const json& check, const std::string& mode) {
  if (!check["passed"].get<bool>()) return "FAILED";
  if (!check["checked"].get<bool>()) return "not run";
  const json& worst = check[mode == "forward" ? "forward" : "backward"];
  const std::string what = worst["what"];
  return what.empty() ? "exact" : format("%.2f ", worst["ratio"].get<double>()) + what;
}

void run_row(const json& run, std::ostringstream& text) {
  text << "| " << run["name"].get<std::string>() << " | " << run["engine"].get<std::string>() << " | "
       << run["mode"].get<std::string>() << " | " << run["threads"] << " | ";
  if (!run.contains("seconds")) {
    text << "not timed | | | | | | | | | " << check_cell(run["check"], run["mode"]) << " |\n";
    return;
  }
  const json& time = run["seconds"];
  text << duration(time["median"]) << " | " << duration(time["p10"]) << " to " << duration(time["p90"]) << " | "
       << format("%.1f", run["operations_per_second"].get<double>() * 1e-9) << " | "
       << format("%.1f %%", run["share_of_peak"].get<double>() * 100) << " | "
       << (run.contains("share_of_peak_cpu") ? format("%.1f %%", run["share_of_peak_cpu"].get<double>() * 100) : "")
       << " | ";
  // With fewer queries than this a call is bound by reading keys and values, not by products.
  constexpr int64_t kFewQueries = 16;
  text << (run["Tq"].get<int64_t>() <= kFewQueries && run["mode"] == "forward"
               ? format("%.1f %%", run["share_of_bandwidth"].get<double>() * 100)
               : "")
       << " | " << (run.contains("speedup") ? format("%.2f", run["speedup"].get<double>()) : "") << " | ";
  if (run.contains("against")) {
    const json& against = run["against"];
    text << format("%.2f", against["time"].get<double>());
    if (against.contains("time_per_operation")) {
      text << " (per operation " << format("%.2f", against["time_per_operation"].get<double>()) << ")";
    }
    text << " x " << against["name"].get<std::string>();
  }
  text << " | " << (run["memory_growth"].is_null() ? "" : mebibytes(run["memory_growth"].get<double>())) << " | "
       << check_cell(run["check"], run["mode"]) << " |\n";
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
                  {"read", rates_by_threads(report.machine.read)},
                  {"read_buffer_bytes", report.read_buffer_bytes},
                  {"fork_join", by_threads(report.machine.fork_join)}};
  json runs = json::array();
  for (const Run& run : report.runs) {
    const Case& spec = run.spec();
    json entry = {{"name", spec.name},       {"case", spec.line},
                  {"engine", run.engine},    {"mode", name(run.mode)},
                  {"threads", run.threads},  {"Tq", spec.Tq},
                  {"pairs", run.work.pairs}, {"operations", operations(run.work, run.mode)},
                  {"memory_growth", nullptr}};
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
  return {{"qkv", report.facts.version}, {"machine", std::move(machine)}, {"runs", std::move(runs)}};
}

std::string to_markdown(const json& report) {
  const json& machine = report["machine"];
  std::ostringstream text;
  text << "qkv " << report["qkv"].get<std::string>() << " on " << machine["cpu"].get<std::string>()
       << ", instruction set " << machine["target"].get<std::string>() << ", " << machine["compiler"].get<std::string>()
       << " (" << machine["build"].get<std::string>() << "), " << machine["threads"] << " CPUs\n\n";
  machine_rows(machine, text);
  text << "\n| case | engine | mode | threads | median | p10 to p90 | GFLOP/s | of peak | of peak, CPU time | of "
          "bandwidth | times 1 "
          "thread | "
          "time against | memory | error ratio |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const json& run : report["runs"]) run_row(run, text);
  text << "\nThe columns are explained in bench/README.md. Checked against the reference before timing:\n\n";
  std::string last;
  for (const json& run : report["runs"]) {
    const json& check = run["check"];
    if (run["name"] == last || !check["checked"].get<bool>()) continue;
    last = run["name"];
    text << "- " << last << ": " << check["scope"].get<std::string>();
    if (!check["passed"].get<bool>()) text << "; FAILED: " << check["failure"].get<std::string>();
    text << '\n';
  }
  return text.str();
}

}  // namespace qkv::bench

// SPDX-License-Identifier: Apache-2.0
#include "markdown.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <sstream>
#include <vector>

namespace qkv::bench {
namespace {

using nlohmann::json;

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), pattern, value);
  return text;
}

std::string percent(double share) { return format("%.1f %%", share * 100); }

std::string duration(double seconds) {
  if (seconds >= 1) return format("%.3g s", seconds);
  return seconds >= 1e-3 ? format("%.3g ms", seconds * 1e3) : format("%.3g us", seconds * 1e6);
}

std::string mebibytes(const json& bytes) {
  return bytes.is_null() ? "" : format("%.1f MiB", bytes.get<double>() / 1048576.0);
}

/// The value of a key by a way to print it; nothing where the key is missing.
template <class Print>
std::string cell(const json& object, const char* key, const Print& print) {
  return object.contains(key) ? print(object[key].get<double>()) : "";
}

std::string spread_of(const json& value, double scale, const char* pattern) {
  return format(pattern, value["median"].get<double>() * scale) + " (" +
         format(pattern, value["p10"].get<double>() * scale) + " to " +
         format(pattern, value["p90"].get<double>() * scale) + ")";
}

void row(std::ostringstream& text, const std::vector<std::string>& cells) {
  text << '|';
  for (const std::string& one : cells) text << ' ' << one << (one.empty() ? "|" : " |");
  text << '\n';
}

void head(std::ostringstream& text, const std::vector<std::string>& titles) {
  row(text, titles);
  text << '|';
  for (size_t t = 0; t < titles.size(); ++t) text << "---|";
  text << '\n';
}

void machine_table(const json& machine, std::ostringstream& text) {
  struct Limit {
    const char *key, *title, *unit;
    double scale;
  };
  const Limit limits[] = {{"multiply_add_f32", "multiply-add peak f32", "GFLOP/s", 1e-9},
                          {"multiply_add_f64", "multiply-add peak f64", "GFLOP/s", 1e-9},
                          {"dot_bf16", "dot-product peak bf16", "GFLOP/s", 1e-9},
                          {"read", "read bandwidth", "GB/s", 1e-9},
                          {"fork_join", "fork and join", "us", 1e6}};
  head(text, {"limit", "threads", "median (p10 to p90)", "best"});
  for (const Limit& limit : limits) {
    for (const auto& [threads, value] : machine[limit.key].items()) {
      row(text, {std::string(limit.title) + ", " + limit.unit, threads, spread_of(value, limit.scale, "%.4g"),
                 cell(value, "best", [&](double best) { return format("%.4g", best * limit.scale); })});
    }
  }
}

std::string check_cell(const json& run) {
  const json& check = run["check"];
  if (run["engine"] != "qkv") return "";
  if (!check["passed"].get<bool>()) return "FAILED";
  if (!check["checked"].get<bool>()) return "not run";
  const json& worst = check[run["mode"] == "forward" ? "forward" : "backward"];
  const std::string what = worst["what"];
  return what.empty() ? "exact" : format("%.2f ", worst["ratio"].get<double>()) + what;
}

std::string against_cell(const json& run) {
  if (!run.contains("against")) return "";
  const json& against = run["against"];
  std::string text = format("%.2f", against["time"].get<double>());
  if (against.contains("time_per_operation")) {
    text += format(" (per operation %.2f)", against["time_per_operation"].get<double>());
  }
  return text + " x " + against["name"].get<std::string>();
}

std::vector<std::string> name_cells(const json& run) {
  return {run["name"].get<std::string>(), run["mode"].get<std::string>(), std::to_string(run["threads"].get<int>())};
}

void run_table(const json& runs, std::ostringstream& text) {
  head(text, {"case", "mode", "threads", "engine", "median", "p10 to p90", "GFLOP/s", "of peak", "of peak, CPU time",
              "of bf16 peak", "of bandwidth", "times 1 thread", "time against", "memory", "error ratio"});
  for (const json& run : runs) {
    std::vector<std::string> cells = name_cells(run);
    cells.push_back(run["engine"]);
    if (!run.contains("seconds")) {
      if (run.contains("refused")) continue;  // said below the peers' table
      cells.push_back("not timed");
      cells.resize(14);
    } else {
      const json& time = run["seconds"];
      cells.push_back(duration(time["median"]));
      cells.push_back(duration(time["p10"]) + " to " + duration(time["p90"]));
      cells.push_back(format("%.1f", run["operations_per_second"].get<double>() * 1e-9));
      for (const char* key : {"share_of_peak", "share_of_peak_cpu", "share_of_bf16_peak", "share_of_bandwidth"}) {
        cells.push_back(cell(run, key, percent));
      }
      cells.push_back(cell(run, "speedup", [](double times) { return format("%.2f", times); }));
      cells.push_back(against_cell(run));
      cells.push_back(mebibytes(run["memory_growth"]));
    }
    cells.push_back(check_cell(run));
    row(text, cells);
  }
}

void check_list(const json& runs, std::ostringstream& text) {
  std::string last;
  for (const json& run : runs) {
    const json& check = run["check"];
    if (run["name"] == last || !check["checked"].get<bool>()) continue;
    last = run["name"];
    text << "- " << last << ": " << check["scope"].get<std::string>();
    if (!check["passed"].get<bool>()) text << "; FAILED: " << check["failure"].get<std::string>();
    text << '\n';
  }
}

/// What of the machine bounds a run, and the key of the share of it: the limit it comes closest to.
std::pair<const char*, const char*> limit_of(const json& run) {
  std::pair<const char*, const char*> limit = {
      "peak", run.contains("share_of_peak_cpu") ? "share_of_peak_cpu" : "share_of_peak"};
  if (run.contains("share_of_bf16_peak")) limit = {"bf16 peak", "share_of_bf16_peak"};
  const double share = run[limit.second];
  if (run.contains("share_of_bandwidth") && run["share_of_bandwidth"] > share) {
    limit = {"bandwidth", "share_of_bandwidth"};
  }
  return limit;
}

/// qkv's run and what each engine made of the same.
struct Comparison {
  const json* ours = nullptr;
  std::map<std::string, const json*> peers;
};

std::vector<Comparison> comparisons_of(const json& runs) {
  std::vector<Comparison> comparisons;
  for (const json& run : runs) {
    if (run["engine"] == "qkv") {
      comparisons.push_back({&run, {}});
    } else if (!comparisons.empty()) {  // a peer's run follows ours
      comparisons.back().peers[run["engine"]] = &run;
    }
  }
  return comparisons;
}

void comparison_row(const Comparison& comparison, const std::vector<std::string>& engines, std::ostringstream& text) {
  const json& ours = *comparison.ours;
  if (!ours.contains("seconds") || comparison.peers.empty()) return;
  const auto [limit, key] = limit_of(ours);
  std::vector<std::string> cells = name_cells(ours);
  cells.insert(cells.end(), {limit, percent(ours[key])});
  const json* best = nullptr;
  for (const std::string& engine : engines) {
    const auto found = comparison.peers.find(engine);
    const json* peer = found == comparison.peers.end() ? nullptr : found->second;
    const bool timed = peer != nullptr && peer->contains("time_over_qkv");
    cells.push_back(timed ? percent((*peer)[key]) : "-");
    if (timed && (best == nullptr || (*peer)["time_over_qkv"] < (*best)["time_over_qkv"])) best = peer;
  }
  cells.push_back(best == nullptr ? ""
                                  : format("%.2f x ", (*best)["time_over_qkv"].get<double>()) +
                                        (*best)["engine"].get<std::string>());
  cells.push_back(mebibytes(ours["memory_growth"]));
  cells.push_back(best == nullptr ? "" : mebibytes((*best)["memory_growth"]));
  row(text, cells);
}

/// Cases by what was said of them, so that one sentence stands for many.
void say_of_cases(const json& runs, const char* key, const std::string& title, std::ostringstream& text) {
  std::map<std::string, std::vector<std::string>> said;
  std::set<std::string> seen;
  for (const json& run : runs) {
    if (!run.contains(key) || (key == std::string("how") && !run.contains("seconds"))) continue;
    const std::string sentence = run["engine"].get<std::string>() + ": " + run[key].get<std::string>();
    const std::string which = run["name"].get<std::string>() + "/" + run["mode"].get<std::string>();
    if (seen.insert(sentence + which).second) said[sentence].push_back(which);
  }
  if (!said.empty()) text << '\n' << title << "\n\n";
  for (const auto& [sentence, cases] : said) {
    text << "- " << sentence << " (";
    constexpr size_t kNamed = 8;
    for (size_t c = 0; c < std::min(kNamed, cases.size()); ++c) text << (c == 0 ? "" : ", ") << cases[c];
    if (cases.size() > kNamed) text << ", and " << cases.size() - kNamed << " more";
    text << ")\n";
  }
}

void peer_table(const json& report, std::ostringstream& text) {
  std::vector<std::string> engines, titles = {"case", "mode", "threads", "share of", "qkv"};
  text << "\n## Beside other libraries\n\n";
  for (const json& peer : report["peers"]) {
    const std::string engine = peer["engine"], absent = peer["absent"];
    text << "- " << engine << ' ' << peer["version"].get<std::string>() << (absent.empty() ? "" : ": absent, ")
         << absent << '\n';
    if (absent.empty()) engines.push_back(engine);
  }
  titles.insert(titles.end(), engines.begin(), engines.end());
  titles.insert(titles.end(), {"best peer's time over qkv's", "memory, qkv", "memory, best peer"});
  text << '\n';
  head(text, titles);
  for (const Comparison& comparison : comparisons_of(report["runs"])) comparison_row(comparison, engines, text);
  say_of_cases(report["runs"], "how", "How they were called:", text);
  say_of_cases(report["runs"], "refused", "Why there is a dash:", text);
}

}  // namespace

std::string to_markdown(const json& report) {
  const json& machine = report["machine"];
  std::ostringstream text;
  text << "qkv " << report["qkv"].get<std::string>() << " on " << machine["cpu"].get<std::string>()
       << ", instruction set " << machine["target"].get<std::string>() << ", " << machine["compiler"].get<std::string>()
       << " (" << machine["build"].get<std::string>() << "), " << machine["threads"] << " CPUs\n\n";
  machine_table(machine, text);
  text << '\n';
  run_table(report["runs"], text);
  text << "\nThe columns are explained in bench/README.md.\n";
  if (!report["peers"].empty()) peer_table(report, text);
  text << "\nChecked against the reference before timing:\n\n";
  check_list(report["runs"], text);
  return text.str();
}

}  // namespace qkv::bench

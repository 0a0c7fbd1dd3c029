// SPDX-License-Identifier: Apache-2.0
// qkv_bench: how close attention comes to what this machine can do. Checks every case against the f64 reference, then
// times all of them round robin, together with the machine's own limits.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>

#include "markdown.h"
#include "peer.h"
#include "qkv/kernels/targets.h"
#include "qkv/support/error.h"
#include "qkv/support/parallel.h"
#include "report.h"

namespace qkv::bench {
namespace {

/// Of the rows that are compared with the reference, which otherwise takes longer than the timing.
constexpr double kQuickCheckShare = 0.1;

struct Arguments {
  std::vector<std::string> case_files;
  std::string filter;
  std::vector<int> threads;
  Limits limits;
  bool quick = false;
  bool no_check = false;
  bool check_only = false;
  bool list = false;
  std::vector<std::string> peers;
  std::string target;
  std::string json;
};

std::string find_case_file(const std::string& name) {
  if (std::filesystem::exists(name)) return name;
  std::error_code none;
  const std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe", none).parent_path();
  for (const std::filesystem::path& folder :
       {here / QKV_BENCH_INSTALLED_CASES, std::filesystem::path(QKV_BENCH_CASES)}) {
    const std::filesystem::path known = folder / (name + ".txt");
    if (std::filesystem::exists(known)) return known.string();
  }
  return name;
}

std::vector<Case> chosen_cases(const Arguments& arguments) {
  std::vector<Case> chosen;
  for (const std::string& file : arguments.case_files) {
    const std::vector<Case> cases = read_cases(find_case_file(file));
    std::set<std::string> names;
    for (const Case& one : cases) {
      if (one.name.find(arguments.filter) == std::string::npos) continue;
      names.insert(one.name);
      if (!one.against.empty()) names.insert(one.against);  // a comparison needs both sides
    }
    for (const Case& one : cases) {
      if (names.count(one.name) == 0) continue;
      chosen.push_back(one);
      if (arguments.quick) chosen.back().check_share = kQuickCheckShare;
    }
  }
  require(!chosen.empty(), "bench: no case has '", arguments.filter, "' in its name");
  return chosen;
}

std::vector<int> thread_counts(const Case& spec, const Arguments& arguments) {
  if (!arguments.threads.empty()) return arguments.threads;
  if (!spec.threads.empty()) return spec.threads;
  return available_threads() > 1 ? std::vector<int>{1, available_threads()} : std::vector<int>{1};
}

/// Fills, checks and lists what is timed. Runs of a case that failed its check go to `failed`.
std::vector<Run> prepare(const std::vector<Case>& cases, const Arguments& arguments,
                         const std::vector<std::shared_ptr<Peer>>& peers, std::vector<Run>& failed) {
  std::vector<Run> runs;
  for (const Case& spec : cases) {
    progress((arguments.no_check ? "filling " : "checking ") + spec.name);
    const std::shared_ptr<Subject> subject = make_subject(spec);
    const std::vector<int> threads = thread_counts(spec, arguments);
    Verdict verdict;
    if (!arguments.no_check) verdict = subject->verify(threads);
    std::vector<Run> ours = runs_of(subject, threads);
    for (Run& run : ours) run.verdict = verdict;
    if (verdict.passed && !arguments.check_only) ours = with_peers(std::move(ours), peers);
    for (Run& run : ours) (verdict.passed ? runs : failed).push_back(std::move(run));
    if (!verdict.passed) std::cerr << "qkv_bench: " << spec.name << ": " << verdict.failure << '\n';
  }
  return runs;
}

/// One line a case that was checked.
std::string runs_checked(const std::vector<Run>& passed, const std::vector<Run>& failed) {
  std::string text, last;
  for (const std::vector<Run>* runs : {&passed, &failed}) {
    for (const Run& run : *runs) {
      if (run.spec().name == last) continue;
      last = run.spec().name;
      text += concat(run.verdict.passed ? "ok     " : "FAILED ", last, ": ", run.verdict.scope, '\n');
    }
  }
  return text;
}

int run(const Arguments& arguments) {
  if (!arguments.target.empty()) choose_target(arguments.target);
  const std::vector<Case> cases = chosen_cases(arguments);
  if (arguments.list) {
    for (const Case& one : cases) std::cout << one.line << '\n';
    return 0;
  }
  Report report;
  report.facts = machine_facts();
  const std::vector<std::shared_ptr<Peer>> peers = start_peers(arguments.peers);
  for (const auto& peer : peers) report.peers.push_back({peer->engine(), peer->version(), peer->absent()});
  std::vector<Run> failed;
  report.runs = prepare(cases, arguments, peers, failed);
  if (arguments.check_only) {
    std::cout << runs_checked(report.runs, failed);
    return failed.empty() ? 0 : 1;
  }
  const MachineMeter meter;
  report.read_buffer_bytes = meter.buffer_bytes();
  report.machine = time_runs(report.runs, meter, arguments.limits);
  const bool passed = failed.empty();
  for (Run& run : failed) report.runs.push_back(std::move(run));

  const nlohmann::json result = to_json(report);
  std::cout << to_markdown(result);
  if (!arguments.json.empty()) {
    std::ofstream file(arguments.json);
    file << result.dump(1) << '\n' << std::flush;
    if (!file) throw SystemError(concat("bench: cannot write ", arguments.json));
  }
  return passed ? 0 : 1;
}

void describe(CLI::App& app, Arguments& arguments) {
  app.add_option("CASES,--cases", arguments.case_files,
                 "case files, or names of those in bench/cases (default: default)");
  app.add_option("--filter", arguments.filter, "only cases with this in their name");
  app.add_option("--threads", arguments.threads, "numbers of threads, for every case (default: 1 and all CPUs)")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  app.add_option("--repetitions", arguments.limits.repetitions, "most rounds")->check(CLI::PositiveNumber);
  app.add_option("--seconds", arguments.limits.seconds, "time for warming up and all rounds; one always runs")
      ->check(CLI::PositiveNumber);
  app.add_flag("--quick", arguments.quick, "at most 5 rounds and 60 seconds, after a check of a tenth of the rows");
  app.add_flag("--no-check", arguments.no_check, "time without comparing to the reference first");
  app.add_flag("--check-only", arguments.check_only, "compare to the reference and stop")->excludes("--no-check");
  app.add_option("--peer", arguments.peers,
                 "a command that speaks for another library (see bench/README.md); may be given again");
  app.add_option("--target", arguments.target, "instruction set (see qkv info)");
  app.add_option("--json", arguments.json, "also write the result to this file");
  app.add_flag("--list", arguments.list, "print the chosen cases and stop");
  app.footer(case_help());
}

}  // namespace
}  // namespace qkv::bench

int main(int argc, char** argv) {
  using namespace qkv::bench;
  CLI::App app("Times exact attention beside the limits of this machine.", "qkv_bench");
  Arguments arguments;
  describe(app, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (arguments.quick) arguments.limits = {5, 60};
  if (arguments.case_files.empty()) arguments.case_files = {"default"};
  try {
    return run(arguments);
  } catch (const qkv::SystemError& error) {
    std::cerr << "qkv_bench: error: " << error.what() << '\n';
    return 1;
  } catch (const qkv::Error& error) {
    std::cerr << "qkv_bench: error: " << error.what() << '\n';
    return 2;
  }
}

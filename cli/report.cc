// SPDX-License-Identifier: Apache-2.0
#include "cli/report.h"

#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/check.h"
#include "qkv/support/error.h"

namespace qkv::cli {
namespace {

using nlohmann::ordered_json;

ordered_json describe(const std::map<std::string, Tensor>& tensors) {
  ordered_json result = ordered_json::object();
  for (const auto& [name, tensor] : tensors) {
    result[name] = {{"dtype", qkv::name(tensor.dtype())},
                    {"shape", std::vector<int64_t>(tensor.shape().begin(), tensor.shape().end())}};
  }
  return result;
}

ordered_json describe(const std::vector<AccuracyComparison>& comparisons) {
  ordered_json tensors = ordered_json::object();
  for (const AccuracyComparison& one : comparisons) {
    // Infinity, of an error or a ratio, becomes null.
    tensors[one.name] = {{"error", one.error},   {"plain_error", one.plain_error}, {"ratio", one.ratio()},
                         {"factor", one.factor}, {"allowance", one.allowance},     {"kept", one.holds()}};
  }
  return {{"passed", all_kept(comparisons)}, {"tensors", tensors}};
}

std::string json_text(const Call& call, const ProblemFile& problem, const Arrays& results, const Summary& summary) {
  ordered_json object = {
      {"verb", summary.verb},         {"output", call.output},    {"inputs", describe(problem.tensors())},
      {"outputs", describe(results)}, {"target", summary.target}, {"threads", thread_count(call)},
      {"seconds", summary.seconds}};
  if (call.check) object["check"] = describe(summary.comparisons);
  // Paths may hold any bytes; JSON holds UTF-8.
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

void list(std::ostream& text, const char* title, const std::map<std::string, Tensor>& tensors) {
  for (const auto& [name, tensor] : tensors) {
    text << std::left << std::setw(8) << title << std::setw(16) << name << std::setw(6) << qkv::name(tensor.dtype())
         << to_string(tensor.shape()) << "\n";
    title = "";
  }
}

void list(std::ostream& text, const std::vector<AccuracyComparison>& comparisons) {
  text << "\ncheck   " << std::setw(16) << "against f64" << std::setw(16) << "largest error" << std::setw(20)
       << "the plain formula's" << std::setw(10) << "ratio"
       << "allowed\n";
  for (const AccuracyComparison& one : comparisons) {
    text << std::setw(8) << "" << std::setw(16) << one.name << std::scientific << std::setprecision(2) << std::setw(16)
         << one.error << std::setw(20) << one.plain_error << std::defaultfloat << std::setw(10) << one.ratio()
         << std::scientific << one.bound() << (one.holds() ? "" : "  BROKEN") << "\n";
  }
}

std::string plain_text(const Call& call, const ProblemFile& problem, const Arrays& results, const Summary& summary) {
  std::ostringstream text;
  list(text, "read", problem.tensors());
  list(text, "result", results);
  text << std::left << std::setw(8) << "to" << call.output << "\n";
  text << std::setw(8) << "with" << summary.target << ", " << thread_count(call)
       << (thread_count(call) == 1 ? " thread, " : " threads, ") << std::setprecision(3) << summary.seconds << " s\n";
  if (call.check) list(text, summary.comparisons);
  return text.str();
}

}  // namespace

void print_summary(const Call& call, const ProblemFile& problem, const Arrays& results, const Summary& summary) {
  print(call.json ? json_text(call, problem, results, summary) : plain_text(call, problem, results, summary));
}

void print(const std::string& text) {
  std::cout << text << std::flush;
  if (!std::cout) throw SystemError("standard output: cannot write");
}

}  // namespace qkv::cli

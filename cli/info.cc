// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>
#include <vector>

#include "cli/verbs.h"
#include "qkv/kernels/targets.h"
#include "qkv/support/error.h"
#include "qkv/version.h"

namespace qkv::cli {
namespace {

/// Names and versions of what this program was built with.
std::vector<std::pair<std::string, std::string>> dependencies() {
  return {{"highway", QKV_HIGHWAY_VERSION},
          {"openmp", QKV_OPENMP_VERSION},
          {"oniguruma", QKV_ONIGURUMA_VERSION},
          {"utf8proc", QKV_UTF8PROC_VERSION},
          {"nlohmann_json",
           concat(NLOHMANN_JSON_VERSION_MAJOR, ".", NLOHMANN_JSON_VERSION_MINOR, ".", NLOHMANN_JSON_VERSION_PATCH)},
          {"CLI11", CLI11_VERSION}};
}

std::string as_json(const Call& call, const std::string& target) {
  nlohmann::ordered_json object = {{"version", version()},
                                   {"targets", supported_targets()},
                                   {"target", target},
                                   {"threads", thread_count(call)},
                                   {"dependencies", nlohmann::ordered_json::object()}};
  for (const auto& [name, version] : dependencies()) object["dependencies"][name] = version;
  return object.dump() + "\n";
}

std::string as_text(const Call& call, const std::string& target) {
  std::ostringstream text;
  text << "qkv " << version() << "\n\ninstruction sets found, best first:";
  for (const std::string& name : supported_targets()) text << " " << name;
  text << "\nin use: " << target << "   (another one: --target NAME, or the environment variable QKV_TARGET)\n"
       << "threads: " << thread_count(call) << "\n\nbuilt with:\n";
  for (const auto& [name, version] : dependencies()) text << "  " << name << " " << version << "\n";
  return text.str();
}

void run(const Call& call) {
  const std::string target = use_target(call);
  print(call.json ? as_json(call, target) : as_text(call, target));
}

}  // namespace

const Verb kInfo = {"info", "version, instruction sets found and chosen, threads, dependencies",
                    "Example:\n"
                    "  qkv info --json",
                    add_machine_options, run};

}  // namespace qkv::cli

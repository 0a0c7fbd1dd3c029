// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/verbs.h"
#include "qkv/support/error.h"

namespace qkv::cli {
namespace {

constexpr const char* kProgram = "qkv_bench";

/// Every word that follows is the benchmark's, --help too.
void add(CLI::App& verb, Call& call) {
  verb.prefix_command();
  verb.set_help_flag();
  verb.parse_complete_callback([&verb, &call] { call.bench = verb.remaining(); });
}

/// The benchmark is a program of its own, which links what is not installed; it takes this one's place.
void run(const Call& call) {
  std::vector<std::string> words = call.bench;
  words.insert(words.begin(), kProgram);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::signal(SIGPIPE, SIG_DFL);  // what is ignored would stay so
  ::signal(SIGXFSZ, SIG_DFL);
  std::error_code none;
  const std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe", none).parent_path();
  ::execv((here / kProgram).c_str(), argv.data());
  if (errno == ENOENT) ::execvp(kProgram, argv.data());
  throw SystemError(concat("bench: expected the program ", kProgram,
                           " beside qkv or on PATH, got: ", std::strerror(errno), "; script/bench builds it"));
}

}  // namespace

const Verb kBench = {"bench", "times attention beside the limits of this machine; see qkv bench --help", "", add, run};

}  // namespace qkv::cli

// SPDX-License-Identifier: Apache-2.0
#include "peer.h"

#include <unistd.h>

#include <cmath>

#include <filesystem>
#include <iostream>
#include <sstream>

#include "qkv/tensor/safetensors.h"

namespace qkv::bench {
namespace {

using nlohmann::json;

/// Libraries round in other places than we do; a wrong mask or scale shows in the first digit.
double tolerated_error(DType dtype) {
  switch (dtype) {
    case DType::f64: return 1e-9;
    case DType::f32: return 1e-3;
    default: return 5e-2;
  }
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

/// A file in the folder for temporary ones that goes with the object.
class ScratchFile {
 public:
  ScratchFile() : path_(std::filesystem::temp_directory_path() / concat("qkv_bench-", getpid(), ".safetensors")) {}
  ~ScratchFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

/// The inputs, and our results in the place of the reference's: of the last call of each mode.
void write_problem(const std::vector<Run>& ours, const std::string& path) {
  for (const Run& run : ours) run.call();
  write_safetensors(path, ours.front().subject->tensors());
}

}  // namespace

Peer::Peer(const std::vector<std::string>& command) : process_(command) {
  const json hello = process_.ask({{"do", "hello"}});
  engine_ = hello.value("engine", "");
  version_ = hello.value("version", "");
  absent_ = hello.value("refused", "");
  require(!engine_.empty(), "bench: ", command.front(), " does not say which engine it is");
}

Run Peer::prepare(const Run& ours, const std::string& file) {
  Run run;
  run.engine = engine_;
  run.subject = ours.subject;
  run.mode = ours.mode;
  run.threads = ours.threads;
  run.work = ours.work;
  try {
    const json answer = process_.ask({{"do", "prepare"},
                                      {"file", file},
                                      {"keys", ours.spec().keys},
                                      {"mode", name(ours.mode)},
                                      {"threads", ours.threads}});
    run.refused = answer.value("refused", "");
    if (!run.refused.empty()) return run;
    run.how = answer.value("how", "");
    if (answer.contains("memory_growth")) run.memory_growth = answer["memory_growth"].get<int64_t>();
    const double error = answer.at("error").is_number() ? answer["error"].get<double>() : HUGE_VAL;
    if (error > tolerated_error(ours.spec().dtype)) {
      run.refused = concat("its result differs by ", error, " (", run.how, ")");
    }
    run.remote = [this, id = answer.at("id")](int64_t calls) {
      const json times = process_.ask({{"do", "time"}, {"id", id}, {"calls", calls}});
      return Sample{times.at("seconds").get<double>(), times.at("cpu_seconds").get<double>()};
    };
  } catch (const PeerError& error) {
    run.refused = error.what();
  } catch (const json::exception& error) {
    run.refused = concat("an answer that makes no sense: ", error.what());
  }
  return run;
}

std::vector<std::shared_ptr<Peer>> start_peers(const std::vector<std::string>& commands) {
  std::vector<std::shared_ptr<Peer>> peers;
  for (const std::string& command : commands) {
    progress("starting " + command);
    peers.push_back(std::make_shared<Peer>(words_of(command)));
    if (!peers.back()->absent().empty()) {
      std::cerr << "qkv_bench: without " << peers.back()->engine() << ": " << peers.back()->absent() << '\n';
    }
  }
  return peers;
}

std::vector<Run> with_peers(std::vector<Run> ours, const std::vector<std::shared_ptr<Peer>>& peers) {
  if (peers.empty() || ours.empty()) return ours;
  const ScratchFile file;
  write_problem(ours, file.path());
  std::vector<Run> all;
  for (Run& run : ours) {
    all.push_back(run);
    for (const auto& peer : peers) {
      if (!peer->absent().empty()) continue;
      progress(concat("preparing ", run.label(), " of ", peer->engine()));
      all.push_back(peer->prepare(run, file.path()));
    }
  }
  return all;
}

}  // namespace qkv::bench

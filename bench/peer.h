// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "peer_process.h"
#include "timing.h"

namespace qkv::bench {

/// Another library, in a process of its own. It computes only while it is asked to, one call of `time` after the other,
/// so that its rounds lie between ours and nobody computes beside anybody.
///
/// Requests and answers, one JSON object a line (names of tensors are those of problem files):
///   {"do": "hello"}                    {"engine", "version"}; "refused" when the library is not there
///   {"do": "prepare", "file", "keys", "mode", "threads"}
///                                      {"id", "how", "memory_growth", "error"}, or {"refused": why}
///   {"do": "time", "id", "calls"}      {"seconds", "cpu_seconds"} of one call
/// `file` is a .safetensors file with the inputs of the case and our results (out; d_q with gradients); `keys` are the
/// words of the case line; `error` is the largest difference from our results, over their largest element.
class Peer {
 public:
  explicit Peer(const std::vector<std::string>& command);

  const std::string& engine() const { return engine_; }
  const std::string& version() const { return version_; }
  /// Why there is no such library here; empty when there is.
  const std::string& absent() const { return absent_; }

  /// The peer's counterpart of one of our runs: timed by the peer, or with the reason why it cannot be.
  Run prepare(const Run& ours, const std::string& file);

 private:
  PeerProcess process_;
  std::string engine_, version_, absent_;
};

/// Starts the programs, each a command with blanks between its words. One that fails to start is an Error.
std::vector<std::shared_ptr<Peer>> start_peers(const std::vector<std::string>& commands);

/// The runs of one case, each of ours followed by the same of every peer.
std::vector<Run> with_peers(std::vector<Run> ours, const std::vector<std::shared_ptr<Peer>>& peers);

}  // namespace qkv::bench

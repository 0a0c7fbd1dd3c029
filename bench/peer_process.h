// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "qkv/support/error.h"

namespace qkv::bench {

/// The peer ended, hung, or answered something else than one JSON object a line.
class PeerError : public SystemError {
 public:
  using SystemError::SystemError;
};

/// A program on the other side of two pipes: it reads one JSON object a line and answers each with one. Its standard
/// error is ours.
class PeerProcess {
 public:
  /// `command` is a program and its arguments, looked up on PATH. An answer may take `seconds` at most.
  explicit PeerProcess(const std::vector<std::string>& command, double seconds = 900);
  ~PeerProcess();  ///< closes its input and waits; a peer that stays is killed
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  nlohmann::json ask(const nlohmann::json& request);

 private:
  void start(const std::vector<std::string>& command);
  std::string read_line();
  std::string end();
  [[noreturn]] void give_up(const std::string& why);

  std::string program_;
  double seconds_;
  pid_t process_ = -1;
  int to_ = -1, from_ = -1;
  std::string unread_;
};

}  // namespace qkv::bench

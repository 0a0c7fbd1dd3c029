// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <array>
#include <filesystem>
#include <mutex>
#include <thread>

namespace qkv::cli {

/// While this lives, a process that is asked to end (SIGINT, SIGTERM, SIGHUP) first removes what it was about to put
/// beside `place`: files and folders of the names that writers of the library give to what is not finished. Then it
/// ends by that signal. One at a time.
class CleanUp {
 public:
  explicit CleanUp(const std::filesystem::path& place);
  ~CleanUp();
  CleanUp(const CleanUp&) = delete;
  CleanUp& operator=(const CleanUp&) = delete;

  /// While what this returns lives, the process does not end: for steps of which none may be left out.
  [[nodiscard]] std::unique_lock<std::mutex> hold() { return std::unique_lock(steps_); }

 private:
  void wait();

  static constexpr std::array<int, 3> kSignals{SIGINT, SIGTERM, SIGHUP};
  std::filesystem::path folder_;
  std::array<struct sigaction, 3> before_{};
  std::mutex steps_;
  std::thread waiting_;
};

}  // namespace qkv::cli

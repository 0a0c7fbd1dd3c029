// SPDX-License-Identifier: Apache-2.0
#include "peer_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "machine.h"

extern char** environ;

namespace qkv::bench {
namespace {

struct Pipe {
  int read = -1, write = -1;
};

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw SystemError(concat("bench: no pipe: ", std::strerror(errno)));
  return {ends[0], ends[1]};
}

void close_once(int& file) {
  if (file >= 0) close(file);
  file = -1;
}

}  // namespace

PeerProcess::PeerProcess(const std::vector<std::string>& command, double seconds) : seconds_(seconds) {
  require(!command.empty(), "bench: a peer without a command");
  program_ = command.front();
  start(command);
}

void PeerProcess::start(const std::vector<std::string>& command) {
  signal(SIGPIPE, SIG_IGN);  // a peer that ended is seen by the error of write
  Pipe requests = make_pipe(), answers = make_pipe();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, requests.read, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, answers.write, STDOUT_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const int failed = posix_spawnp(&process_, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close_once(requests.read);
  close_once(answers.write);
  to_ = requests.write;
  from_ = answers.read;
  if (failed == 0) return;
  process_ = -1;
  close_once(to_);
  close_once(from_);
  throw PeerError(concat("bench: cannot start ", program_, ": ", std::strerror(failed)));
}

PeerProcess::~PeerProcess() {
  close_once(to_);
  close_once(from_);
  static_cast<void>(end());
}

/// Waits for it, in the end with force, and says how it ended.
std::string PeerProcess::end() {
  if (process_ < 0) return "";
  constexpr double kPatience = 5;
  int status = 0;
  for (const double start = now(); waitpid(process_, &status, WNOHANG) == 0;) {
    if (now() - start > kPatience) kill(process_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  process_ = -1;
  return WIFSIGNALED(status) ? concat("signal ", WTERMSIG(status)) : concat("exit code ", WEXITSTATUS(status));
}

void PeerProcess::give_up(const std::string& why) {
  close_once(to_);
  close_once(from_);
  throw PeerError(concat("bench: ", program_, " ", why, " (", end(), ")"));
}

std::string PeerProcess::read_line() {
  const double start = now();
  for (;;) {
    if (const size_t end = unread_.find('\n'); end != std::string::npos) {
      const std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    const double left = seconds_ - (now() - start);
    if (left <= 0) {
      kill(process_, SIGKILL);
      give_up(concat("gave no answer within ", seconds_, " s"));
    }
    pollfd file = {from_, POLLIN, 0};
    if (poll(&file, 1, 1 + static_cast<int>(left * 1000)) <= 0) continue;
    char bytes[4096];
    const ssize_t count = read(from_, bytes, sizeof(bytes));
    if (count == 0 || (count < 0 && errno != EINTR)) give_up("ended without an answer");
    if (count > 0) unread_.append(bytes, static_cast<size_t>(count));
  }
}

nlohmann::json PeerProcess::ask(const nlohmann::json& request) {
  if (to_ < 0) throw PeerError(concat("bench: ", program_, " has ended"));
  const std::string line = request.dump() + "\n";
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t count = write(to_, line.data() + sent, line.size() - sent);
    if (count < 0 && errno != EINTR) give_up("does not read its requests");
    if (count > 0) sent += static_cast<size_t>(count);
  }
  const std::string text = read_line();
  nlohmann::json answer = nlohmann::json::parse(text, nullptr, false);
  if (!answer.is_object()) give_up(concat("answered '", text.substr(0, 80), "', which is no JSON object"));
  return answer;
}

}  // namespace qkv::bench

// SPDX-License-Identifier: Apache-2.0
//
// A handler may do next to nothing, so it only wakes a thread, which removes files and then lets the signal have its
// way.
#include "cli/clean_up.h"

#include <semaphore.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <system_error>
#include <vector>

#include "qkv/support/error.h"
#include "qkv/tensor/staging_folder.h"

namespace qkv::cli {
namespace {

namespace fs = std::filesystem;

sem_t wake;
std::atomic<int> asked{0};  ///< the signal that came

void on_signal(int number) {
  const int error = errno;
  asked = number;
  ::sem_post(&wake);
  errno = error;
}

std::vector<fs::path> unfinished(const fs::path& folder) {
  const std::string prefix = concat(".qkv-", ::getpid(), "-");
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().filename().native().starts_with(prefix)) found.push_back(entry->path());
  }
  return found;
}

}  // namespace

CleanUp::CleanUp(const fs::path& place) {
  std::error_code error;
  const fs::path real = fs::canonical(place, error);
  folder_ = folder_around(error ? place : real);
  asked = 0;
  ::sem_init(&wake, 0, 0);
  waiting_ = std::thread([this] { wait(); });
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigfillset(&action.sa_mask);
  for (size_t n = 0; n < kSignals.size(); ++n) {
    ::sigaction(kSignals[n], nullptr, &before_[n]);
    if (before_[n].sa_handler == SIG_DFL) ::sigaction(kSignals[n], &action, nullptr);  // nohup's stays ignored
  }
}

CleanUp::~CleanUp() {
  for (size_t n = 0; n < kSignals.size(); ++n) ::sigaction(kSignals[n], &before_[n], nullptr);
  ::sem_post(&wake);
  waiting_.join();
  ::sem_destroy(&wake);
}

void CleanUp::wait() {
  while (::sem_wait(&wake) != 0) {
  }
  if (asked == 0) return;
  const std::lock_guard ends(steps_);
  for (const fs::path& path : unfinished(folder_)) {
    // Whoever writes goes on meanwhile. Under another name nothing can be made in a folder, nor can it take its place
    // while it is being emptied; one that is in its place already stays.
    const fs::path going = path.string() + ".going";
    std::error_code error;
    fs::rename(path, going, error);
    if (!error) fs::remove_all(going, error);
  }
  ::signal(asked, SIG_DFL);
  ::kill(::getpid(), asked);
  for (;;) ::pause();
}

}  // namespace qkv::cli

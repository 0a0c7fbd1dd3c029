// SPDX-License-Identifier: Apache-2.0
#include "cli/clean_up.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "qkv/support/error.h"

namespace qkv::cli {
namespace {

namespace fs = std::filesystem;

class CleanUpTest : public testing::Test {
 protected:
  CleanUpTest() : folder_(fs::temp_directory_path() / concat("qkv-clean-up-test-", ::getpid())) {
    fs::create_directory(folder_);
  }
  ~CleanUpTest() override { fs::remove_all(folder_); }
  void write(const fs::path& path) const { std::ofstream(path) << "text"; }

  fs::path folder_;
};

using CleanUpDeathTest = CleanUpTest;

TEST_F(CleanUpDeathTest, ASignalRemovesWhatIsNotFinished) {
  const auto end = [&] {
    const CleanUp clean_up(folder_ / "out");
    write(folder_ / concat(".qkv-", ::getpid(), "-0"));
    ::raise(SIGTERM);
    for (;;) ::pause();
  };
  EXPECT_EXIT(end(), testing::KilledBySignal(SIGTERM), testing::Eq(""));
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(CleanUpDeathTest, ASignalWaitsForStepsOfWhichNoneMayBeLeftOut) {
  const auto end = [&] {
    CleanUp clean_up(folder_ / "out");
    const fs::path unfinished = folder_ / concat(".qkv-", ::getpid(), "-0");
    write(unfinished);
    {
      const auto hold = clean_up.hold();
      ::raise(SIGTERM);
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      fs::rename(unfinished, folder_ / "out");
    }
    for (;;) ::pause();
  };
  EXPECT_EXIT(end(), testing::KilledBySignal(SIGTERM), testing::Eq(""));
  EXPECT_TRUE(fs::exists(folder_ / "out"));
}

}  // namespace
}  // namespace qkv::cli

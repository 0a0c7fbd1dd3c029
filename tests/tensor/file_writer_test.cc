// SPDX-License-Identifier: Apache-2.0
#include "tensor/file_writer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <string>
#include <vector>

#include "qkv/tensor/npy.h"
#include "qkv/tensor/safetensors.h"
#include "tensor/files.h"

namespace qkv {
namespace {

using Names = std::vector<std::string>;

/// Files may not grow beyond `bytes`: what a full disk looks like to a writer, without filling one.
class SizeLimit {
 public:
  explicit SizeLimit(rlim_t bytes) : signal_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, signal_);
  }

 private:
  void (*signal_)(int);
  rlimit old_{};
};

TEST(FileWriterTest, NothingIsSeenBeforeTheCommit) {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  write_bytes(path, "old");
  {
    FileWriter writer(path);
    writer.append("new");
    EXPECT_EQ(read_bytes(path), "old");
    writer.commit();
    EXPECT_EQ(read_bytes(path), "new");
  }
  EXPECT_EQ(folder.names(), Names{"a"});
}

TEST(FileWriterTest, GivingUpLeavesTheOldFileAndNothingElse) {
  const TemporaryFolder folder;
  write_bytes(folder / "a", "old");
  {
    FileWriter old(folder / "a"), fresh(folder / "b");
    old.append("new");
    fresh.append(std::string(3 << 20, 'x'));
    EXPECT_EQ(folder.names().size(), 3u);
  }
  EXPECT_EQ(read_bytes(folder / "a"), "old");
  EXPECT_EQ(folder.names(), Names{"a"});
}

TEST(FileWriterTest, LargeAndSmallPiecesKeepTheirOrder) {
  const TemporaryFolder folder;
  std::string expected;
  FileWriter writer(folder / "a");
  for (size_t size : {1u, 1000u, 1u << 20, 3u, (1u << 20) - 3, 7u, (1u << 20) + 1, 0u, 5u}) {
    const std::string piece(size, static_cast<char>('a' + expected.size() % 26));
    expected += piece;
    writer.append(piece);
  }
  writer.commit();
  EXPECT_EQ(read_bytes(folder / "a"), expected);
}

TEST(FileWriterTest, AFullDiskIsReportedAndLeavesNothing) {
  const TemporaryFolder folder;
  const std::string npy = folder / "a.npy", safetensors = folder / "a.safetensors";
  write_bytes(npy, "old");
  Tensor large(DType::f32, Dims{1000, 1000}), small(DType::f32, Dims{100, 100});
  {
    const SizeLimit limit(10000);
    const std::string message = ": cannot be written: File too large";
    EXPECT_EQ(refusal([&] { write_npy(npy, large.view()); }), "system: " + npy + message);
    // Small enough for the buffer: the disk is found full only at the end.
    EXPECT_EQ(refusal([&] { write_npy(npy, small.view()); }), "system: " + npy + message);
    EXPECT_EQ(refusal([&] {
                write_safetensors(safetensors, {{"a", large.view()}});
              }),
              "system: " + safetensors + message);
  }
  EXPECT_EQ(read_bytes(npy), "old");
  EXPECT_EQ(folder.names(), Names{"a.npy"});
}

TEST(FileWriterTest, ADeviceIsWrittenNotReplaced) {
  const Tensor tensor(DType::f32, Dims{4});
  EXPECT_EQ(refusal([&] { write_npy("/dev/full", tensor.view()); }),
            "system: /dev/full: cannot be written: No space left on device");
  struct stat status {};
  ASSERT_EQ(::stat("/dev/full", &status), 0);
  EXPECT_TRUE(S_ISCHR(status.st_mode));
}

TEST(FileWriterTest, PlacesThatCannotBeWritten) {
  const TemporaryFolder folder;
  EXPECT_EQ(refusal([&] { FileWriter writer(folder / "none/a"); }),
            "system: " + folder / "none/a" + ": cannot be written: No such file or directory");
  EXPECT_EQ(refusal([&] { FileWriter writer(folder / ""); }),
            "system: " + folder / "" + ": cannot be written: Is a directory");
  EXPECT_EQ(refusal([&] { FileWriter writer(""); }), "system: : cannot be written: No such file or directory");
  write_bytes(folder / "a", "");
  EXPECT_EQ(refusal([&] { FileWriter writer(folder / "a/b"); }),
            "system: " + folder / "a/b" + ": cannot be written: Not a directory");
  const std::string long_name(300, 'n');
  EXPECT_EQ(refusal([&] {
              FileWriter writer(folder / long_name);
              writer.commit();
            }),
            "system: " + folder / long_name + ": cannot be written: File name too long");
  EXPECT_EQ(folder.names(), Names{"a"});
}

TEST(FileWriterTest, PermissionsAndLinksStay) {
  const TemporaryFolder folder;
  write_bytes(folder / "real", "old");
  ASSERT_EQ(::chmod((folder / "real").c_str(), 0640), 0);
  std::filesystem::create_symlink("real", folder / "link");
  FileWriter writer(folder / "link");
  writer.append("new");
  writer.commit();
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(read_bytes(folder / "real"), "new");
  struct stat status {};
  ASSERT_EQ(::stat((folder / "real").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);

  const mode_t mask = ::umask(027);
  FileWriter fresh(folder / "fresh");
  fresh.commit();
  ::umask(mask);
  ASSERT_EQ(::stat((folder / "fresh").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}

}  // namespace
}  // namespace qkv

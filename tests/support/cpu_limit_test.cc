// SPDX-License-Identifier: Apache-2.0
#include "support/cpu_limit.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "qkv/support/parallel.h"

namespace qkv {
namespace {

/// A tree of control group files in a folder of its own.
class Groups : public testing::Test {
 protected:
  Groups() : root_(std::filesystem::temp_directory_path() / ("qkv_cpu_limit_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(root_);
  }
  ~Groups() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  int cpus() const { return cgroup_cpus((root_ / "proc").string(), (root_ / "mount").string()); }

  std::filesystem::path root_;
};

TEST_F(Groups, no_files_are_no_limit) { EXPECT_EQ(cpus(), 0); }

TEST_F(Groups, version_2_rounds_the_quota_up) {
  write("proc", "0::/\n");
  write("mount/cpu.max", "250000 100000\n");
  EXPECT_EQ(cpus(), 3);
  write("mount/cpu.max", "10000 100000\n");
  EXPECT_EQ(cpus(), 1);
  write("mount/cpu.max", "max 100000\n");
  EXPECT_EQ(cpus(), 0);
}

TEST_F(Groups, version_2_takes_the_strictest_of_a_group_and_its_ancestors) {
  write("proc", "0::/a/b/c\n");
  write("mount/a/cpu.max", "200000 100000\n");
  write("mount/a/b/cpu.max", "max 100000\n");
  write("mount/a/b/c/cpu.max", "600000 100000\n");
  EXPECT_EQ(cpus(), 2);
  write("mount/a/b/c/cpu.max", "100000 100000\n");
  EXPECT_EQ(cpus(), 1);
}

TEST_F(Groups, a_container_finds_its_own_group_at_the_mount) {
  write("proc", "0::/../../somewhere/outside\n");
  write("mount/cpu.max", "400000 100000\n");
  EXPECT_EQ(cpus(), 4);
}

TEST_F(Groups, version_1_by_its_controller) {
  write("proc", "5:memory:/m\n4:cpu,cpuacct:/docker/x\n1:name=systemd:/\n");
  write("mount/cpu/docker/x/cpu.cfs_quota_us", "150000\n");
  write("mount/cpu/docker/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpus(), 2);
  write("mount/cpu/docker/x/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(cpus(), 0);
  write("mount/cpu,cpuacct/docker/cpu.cfs_quota_us", "100000\n");
  write("mount/cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpus(), 1);
}

TEST_F(Groups, nonsense_is_no_limit) {
  write("proc", "\nnonsense\n0:\n0::/\n");
  write("mount/cpu.max", "many of them\n");
  EXPECT_EQ(cpus(), 0);
  write("mount/cpu.max", "100000 0\n");
  EXPECT_EQ(cpus(), 0);
}

TEST(cpu_limit, affinity_is_that_of_the_process) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  EXPECT_EQ(affinity_cpus(), CPU_COUNT(&allowed));
  EXPECT_LE(available_threads(), affinity_cpus());
  // In a child that may use one CPU only.
  const pid_t child = fork();
  if (child == 0) {
    int first = 0;
    while (!CPU_ISSET(first, &allowed)) ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    _exit(sched_setaffinity(0, sizeof(one), &one) == 0 && affinity_cpus() == 1 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace qkv

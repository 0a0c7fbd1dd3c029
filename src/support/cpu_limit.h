// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace qkv {

/// CPUs in the affinity mask of the calling thread; at least 1.
int affinity_cpus();

/// The CPU quota of the control groups this process is in, rounded up to whole CPUs, of version 1 or 2, the strictest
/// of the group and its ancestors; 0 when there is none. `proc_cgroup` is /proc/self/cgroup, `mount` /sys/fs/cgroup.
/// A container sees its own group at the mount itself, whatever path the process table names: the mount counts too.
int cgroup_cpus(const std::string& proc_cgroup, const std::string& mount);

}  // namespace qkv

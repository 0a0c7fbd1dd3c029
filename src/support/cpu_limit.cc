// SPDX-License-Identifier: Apache-2.0
#include "support/cpu_limit.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>

namespace qkv {
namespace {

/// The smaller of two limits, where 0 is no limit.
int stricter(int a, int b) {
  if (a == 0 || b == 0) return std::max(a, b);
  return std::min(a, b);
}

int whole_cpus(double quota, double period) {
  if (!(quota > 0) || !(period > 0)) return 0;
  return static_cast<int>(std::clamp(std::ceil(quota / period), 1.0, 1e6));
}

/// Version 2: "cpu.max" holds "quota period", or "max period" without a limit.
int version2_limit(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max") return 0;
  std::istringstream digits(quota);
  double microseconds = 0;
  return digits >> microseconds ? whole_cpus(microseconds, period) : 0;
}

/// Version 1: a quota of -1 is no limit.
int version1_limit(const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us");
  std::ifstream period_file(folder + "/cpu.cfs_period_us");
  double quota = 0;
  double period = 0;
  return quota_file >> quota && period_file >> period ? whole_cpus(quota, period) : 0;
}

/// The strictest limit of `path` below `mount` and of every folder between them, the mount included.
template <class Limit>
int strictest(const std::string& mount, std::string path, Limit limit) {
  int result = limit(mount);
  while (path.size() > 1) {
    result = stricter(result, limit(mount + path));
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
  return result;
}

bool lists_cpu(const std::string& controllers) {
  std::istringstream list(controllers);
  for (std::string controller; std::getline(list, controller, ',');) {
    if (controller == "cpu") return true;
  }
  return false;
}

}  // namespace

int affinity_cpus() {
  // A mask of 1024 CPUs is too small for the largest machines; the kernel then answers EINVAL.
  for (int capacity = 1024; capacity <= 1 << 20; capacity *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(static_cast<size_t>(capacity)),
                                                               [](cpu_set_t* s) { CPU_FREE(s); });
    if (!set) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(capacity));
    if (sched_getaffinity(0, bytes, set.get()) == 0) return std::max(1, CPU_COUNT_S(bytes, set.get()));
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int cgroup_cpus(const std::string& proc_cgroup, const std::string& mount) {
  int result = stricter(version2_limit(mount), version1_limit(mount + "/cpu"));
  std::ifstream groups(proc_cgroup);
  for (std::string line; std::getline(groups, line);) {  // "hierarchy:controllers:path"
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      result = stricter(result, strictest(mount, path, version2_limit));
    } else if (lists_cpu(controllers)) {
      result = stricter(result, strictest(mount + "/cpu", path, version1_limit));
      result = stricter(result, strictest(mount + "/" + controllers, path, version1_limit));
    }
  }
  return result;
}

}  // namespace qkv

// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#if __has_include(<malloc.h>)
#include <malloc.h>
#endif

#include <algorithm>
#include <fstream>
#include <string>

namespace qkv::bench {
namespace {

/// A field of /proc/self/status, in bytes.
std::optional<int64_t> status_bytes(const std::string& field) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(field + ":", 0) == 0) return std::stoll(line.substr(field.size() + 1)) * 1024;
  }
  return std::nullopt;
}

bool reset_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5\n" << std::flush;
  return file.good();
}

}  // namespace

std::optional<int64_t> peak_growth(const std::function<void()>& call) {
#ifdef __GLIBC__
  malloc_trim(0);  // freed memory that stays resident would hide the growth
#endif
  const bool known = reset_peak();
  const std::optional<int64_t> before = status_bytes("VmRSS");
  call();
  const std::optional<int64_t> peak = status_bytes("VmHWM");
  if (!known || !before || !peak) return std::nullopt;
  return std::max<int64_t>(0, *peak - *before);
}

}  // namespace qkv::bench

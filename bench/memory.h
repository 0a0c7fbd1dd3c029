// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

namespace qkv::bench {

/// Runs the call and returns how far its largest resident size lay above the size before it, in bytes. Absent where the
/// system does not let a process reset its own mark (Linux: /proc/self/clear_refs).
std::optional<int64_t> peak_growth(const std::function<void()>& call);

}  // namespace qkv::bench

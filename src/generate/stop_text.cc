// SPDX-License-Identifier: Apache-2.0
#include "qkv/generate/stop_text.h"

#include <algorithm>
#include <utility>

#include "qkv/support/error.h"

namespace qkv {

StopText::StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) require(!stop.empty(), "stop: expected a text, got an empty one");
}

std::string StopText::add(std::string_view piece) {
  if (stopped_) return {};
  held_ += piece;
  // Texts without one are the same however they are cut; so is the first end of one.
  size_t end = std::string::npos, begin = held_.size();
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at == std::string::npos) continue;
    if (at + stop.size() < end || (at + stop.size() == end && at < begin)) {
      begin = at;
      end = at + stop.size();
    }
  }
  if (end != std::string::npos) {
    stopped_ = true;
    held_.resize(begin);
    return std::exchange(held_, {});
  }
  size_t kept = 0;  // bytes at the end that some stop text begins with
  for (const std::string& stop : stops_) {
    for (size_t size = std::min(stop.size() - 1, held_.size()); size > kept; --size) {
      if (held_.ends_with(std::string_view(stop).substr(0, size))) kept = size;
    }
  }
  std::string certain = held_.substr(0, held_.size() - kept);
  held_.erase(0, certain.size());
  return certain;
}

std::string StopText::finish() { return std::exchange(held_, {}); }

}  // namespace qkv

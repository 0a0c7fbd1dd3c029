// SPDX-License-Identifier: Apache-2.0
#include "cli/numbers.h"

#include <charconv>
#include <cmath>
#include <utility>

#include "qkv/support/error.h"

namespace qkv::cli {
namespace {

template <class T>
std::optional<T> parse_all(const std::string& text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return value;
}

/// "a<separator>b" -> (a, b); nothing when the separator does not occur exactly once.
std::optional<std::pair<std::string, std::string>> split(const std::string& text, char separator) {
  const size_t at = text.find(separator);
  if (at == std::string::npos || text.find(separator, at + 1) != std::string::npos) return std::nullopt;
  return std::pair(text.substr(0, at), text.substr(at + 1));
}

template <class... Parts>
[[noreturn]] void refuse(const std::string& flag, const std::string& text, const Parts&... expected) {
  fail(flag, ": expected ", expected..., ", got '", text, "'");
}

std::optional<int64_t> parse_count(const std::string& text, int64_t least) {
  const std::optional<int64_t> value = parse_all<int64_t>(text);
  return value && *value >= least ? value : std::nullopt;
}

std::optional<Range> parse_range(const std::string& text) {
  const auto parts = split(text, ':');
  if (!parts) return std::nullopt;
  const auto begin = parse_count(parts->first, 0);
  const auto end = parse_count(parts->second, 0);
  if (!begin || !end || *begin > *end) return std::nullopt;
  return Range{*begin, *end};
}

}  // namespace

double parse_number(const std::string& flag, const std::string& text) {
  const std::optional<double> value = parse_all<double>(text);
  if (!value || !std::isfinite(*value)) refuse(flag, text, "a finite number");
  return *value;
}

int64_t parse_integer(const std::string& flag, const std::string& text, int64_t least, int64_t most) {
  const std::optional<int64_t> value = parse_all<int64_t>(text);
  if (value && *value >= least && *value <= most) return *value;
  if (least == kLeast) refuse(flag, text, "an integer");
  if (most == kMost) refuse(flag, text, "an integer of at least ", least);
  refuse(flag, text, "an integer from ", least, " to ", most);
}

uint64_t parse_seed(const std::string& flag, const std::string& text) {
  const std::optional<uint64_t> value = parse_all<uint64_t>(text);
  if (!value) refuse(flag, text, "an integer from 0 to 2^64 - 1");
  return *value;
}

Window parse_window(const std::string& flag, const std::string& text) {
  const char* expected = "L,R: how many keys to the left and to the right, each 0 or more, or - for all";
  const auto parts = split(text, ',');
  if (!parts) refuse(flag, text, expected);
  Window window;
  for (auto [side, value] : {std::pair(&parts->first, &window.left), std::pair(&parts->second, &window.right)}) {
    if (*side == "-") continue;
    *value = parse_count(*side, 0);
    if (!*value) refuse(flag, text, expected);
  }
  return window;
}

BlockShape parse_block(const std::string& flag, const std::string& text) {
  const auto parts = split(text, ',');
  const auto queries = parts ? parse_count(parts->first, 1) : std::nullopt;
  const auto keys = parts ? parse_count(parts->second, 1) : std::nullopt;
  if (!queries || !keys) refuse(flag, text, "bq,bk: queries and keys of one block, each at least 1");
  return {*queries, *keys};
}

Causal parse_causal(const std::string& flag, const std::string& text) {
  if (text == "top_left") return Causal::top_left();
  if (text == "bottom_right") return Causal::bottom_right();
  if (text == "offsets") return Causal::with_offsets();
  const std::optional<int64_t> offset = parse_all<int64_t>(text);
  if (!offset) refuse(flag, text, kCausalChoices);
  return Causal::with_offset(*offset);
}

Tile parse_tile(const std::string& flag, const std::string& text) {
  const auto parts = split(text, ',');
  const auto queries = parts ? parse_range(parts->first) : std::nullopt;
  const auto keys = parts ? parse_range(parts->second) : std::nullopt;
  if (!queries || !keys) refuse(flag, text, "q0:q1,k0:k1: ranges of queries and of keys, ends excluded");
  return {*queries, *keys};
}

EdgeRequest parse_edges(const std::string& flag, const std::string& text) {
  const auto parts = split(text, ':');
  const auto query = parts ? parse_count(parts->first, 0) : std::nullopt;
  const auto count = parts ? parse_count(parts->second, 0) : std::nullopt;
  if (!query || !count) refuse(flag, text, "i:K: a query and how many of its heaviest keys");
  return {*query, *count};
}

DType parse_dtype(const std::string& flag, const std::string& text) {
  for (DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    if (text == name(dtype)) return dtype;
  }
  refuse(flag, text, "f64, f32, bf16 or f16");
}

DType parse_model_dtype(const std::string& flag, const std::string& text) {
  if (text == "f32") return DType::f32;
  if (text == "bf16") return DType::bf16;
  refuse(flag, text, "f32 or bf16");
}

Buckets::Kind parse_buckets(const std::string& flag, const std::string& text) {
  if (text == "bidirectional") return Buckets::Kind::bidirectional;
  if (text == "causal") return Buckets::Kind::causal;
  refuse(flag, text, "bidirectional or causal");
}

}  // namespace qkv::cli

// SPDX-License-Identifier: Apache-2.0
//
// Every call that is wrong, each with its sentence.
#include <gtest/gtest.h>

#include "attention/check_calls.h"
#include "qkv/attention/reference.h"

namespace qkv {
namespace {

struct WrongCall {
  const char* message;
  std::function<void(Call&)> spoil;
};

void expect_messages(const std::vector<WrongCall>& table) {
  for (const WrongCall& wrong : table) {
    Call call;
    wrong.spoil(call);
    EXPECT_EQ(message_of([&] { attention_reference(call.q, call.k, call.v, call.options, Arithmetic::plain); }),
              std::string("attention: ") + wrong.message);
  }
}

TEST(check_messages, wrong_queries_keys_and_values) {
  expect_messages({
      {"q is needed, none came", [](Call& c) { c.q = {}; }},
      {"k is needed, none came", [](Call& c) { c.k = {}; }},
      {"v is needed, none came", [](Call& c) { c.v = {}; }},
      {"v has 6 keys, k has 5",
       [](Call& c) {
         c.v = Call::view(DType::f32, {2, 2, 6, 6});
       }},
      {"k has width 7, q has 8",
       [](Call& c) {
         c.k = Call::view(DType::f32, {2, 2, 5, 7});
       }},
      {"k has batch 3, q has 2",
       [](Call& c) {
         c.k = Call::view(DType::f32, {3, 2, 5, 8});
       }},
      {"v has batch 1, q has 2",
       [](Call& c) {
         c.v = Call::view(DType::f32, {1, 2, 5, 6});
       }},
      {"v has 4 heads, k has 2",
       [](Call& c) {
         c.v = Call::view(DType::f32, {2, 4, 5, 6});
       }},
      {"q has 3 heads, which is no multiple of the 2 of k",
       [](Call& c) {
         c.q = Call::view(DType::f32, {2, 3, 3, 8});
       }},
      {"q has 1 heads, which is no multiple of the 2 of k",
       [](Call& c) {
         c.q = Call::view(DType::f32, {2, 1, 3, 8});
       }},
      {"k has 0 heads, q has 4",
       [](Call& c) {
         c.k = Call::view(DType::f32, {2, 0, 5, 8});
         c.v = Call::view(DType::f32, {2, 0, 5, 6});
       }},
      {"k is bf16, q is f32",
       [](Call& c) {
         c.k = Call::view(DType::bf16, {2, 2, 5, 8});
       }},
      {"v is f64, q is f32",
       [](Call& c) {
         c.v = Call::view(DType::f64, {2, 2, 5, 6});
       }},
      {"q must be f64, f32, bf16 or f16, got i32",
       [](Call& c) {
         c.q = Call::view(DType::i32, {2, 4, 3, 8});
       }},
      {"q must have 2, 3 or 4 axes, got [8]", [](Call& c) { c.q = Call::view(DType::f32, {8}); }},
      {"q must have 2, 3 or 4 axes, got [1, 2, 4, 3, 8]",
       [](Call& c) {
         c.q = Call::view(DType::f32, {1, 2, 4, 3, 8});
       }},
      {"k has 3 axes, q has 4",
       [](Call& c) {
         c.k = Call::view(DType::f32, {2, 5, 8});
       }},
      {"v has 2 axes, q has 4",
       [](Call& c) {
         c.v = Call::view(DType::f32, {5, 6});
       }},
      {"q of shape [2, 4, 3, 8] has a null data pointer",
       [](Call& c) {
         c.q = {DType::f32, nullptr, {2, 4, 3, 8}};
       }},
      {"k must be aligned to its 4-byte elements",
       [](Call& c) {
         c.k = {DType::f32, static_cast<const char*>(c.k.data()) + 2, {2, 2, 5, 8}};
       }},
  });
}

TEST(check_messages, sizes_and_strides_that_leave_64_bits) {
  const Dims no_strides = {0, 0, 0, 0};
  expect_messages({
      {"q of shape [1073741824, 1048576, 1024, 4] does not fit 64 bits",
       [&](Call& c) {
         c.q = {DType::f32, c.q.data(), {1 << 30, 1 << 20, 1 << 10, 4}, no_strides};
       }},
      {"k has a size beyond 2^60, [1, 1, 1152921504606846977, 1]",
       [&](Call& c) {
         c.k = {DType::f32, c.k.data(), {1, 1, kFar + 1, 1}, no_strides};
       }},
      {"v has strides that leave 64 bits, [9223372036854775807, 1, 1, 1]",
       [&](Call& c) {
         c.v = {DType::f32, c.v.data(), {2, 2, 5, 6}, {INT64_MAX, 1, 1, 1}};
       }},
      {"v has strides that leave 64 bits, [1, 1, 1, -9223372036854775808]",
       [&](Call& c) {
         c.v = {DType::f32, c.v.data(), {2, 2, 5, 6}, {1, 1, 1, INT64_MIN}};
       }},
      {"q has width 281474976710657, at most 2^48 is computed",
       [&](Call& c) {
         const Dims shape = {1, 1, 1, (int64_t{1} << 48) + 1};
         c.q = {DType::f32, c.q.data(), shape, no_strides};
         c.k = {DType::f32, c.k.data(), shape, no_strides};
         c.v = {DType::f32, c.v.data(), {1, 1, 1, 6}};
       }},
      {"v has width 281474976710657, at most 2^48 is computed",
       [&](Call& c) {
         c.v = {DType::f32, c.v.data(), {2, 2, 5, (int64_t{1} << 48) + 1}, no_strides};
       }},
      {"B x H does not fit 64 bits",
       [&](Call& c) {
         c.q = {DType::f32, nullptr, {2, kFar, 0, 8}, no_strides};
       }},
      // No element is stored, but each row would have a log-sum-exp.
      {"B x H x Tq does not fit 64 bits",
       [&](Call& c) {
         c.q = {DType::f32, nullptr, {int64_t{1} << 30, 1 << 20, 1 << 20, 0}, no_strides};
         c.k = {DType::f32, nullptr, {int64_t{1} << 30, 1, 5, 0}, no_strides};
         c.v = {DType::f32, nullptr, {int64_t{1} << 30, 1, 5, 0}, no_strides};
       }},
  });
}

TEST(check_messages, wrong_numbers) {
  expect_messages({
      {"scale must be finite, got nan", [](Call& c) { c.options.scale = kNan; }},
      {"scale must be finite, got -inf", [](Call& c) { c.options.scale = -kInfinity; }},
      {"scale 1e+39 is beyond the range of f32", [](Call& c) { c.options.scale = 1e39; }},
      {"softcap must be a positive finite number, or 0 for none, got -1", [](Call& c) { c.options.softcap = -1; }},
      {"softcap must be a positive finite number, or 0 for none, got nan", [](Call& c) { c.options.softcap = kNan; }},
      {"softcap must be a positive finite number, or 0 for none, got inf",
       [](Call& c) { c.options.softcap = kInfinity; }},
      {"softcap 1e-50 is outside the range of f32, 1.17549e-38 to 8.50706e+37",
       [](Call& c) { c.options.softcap = 1e-50; }},
      {"dropout must lie in [0, 1), got 1", [](Call& c) { c.options.dropout = 1; }},
      {"dropout must lie in [0, 1), got -1", [](Call& c) { c.options.dropout = -1; }},
      {"dropout must lie in [0, 1), got nan", [](Call& c) { c.options.dropout = kNan; }},
      {"dropout 0.1 needs a seed, none came", [](Call& c) { c.options.dropout = 0.1; }},
      {"threads must lie in 1..4096, or be 0 for all allowed CPUs, got -1", [](Call& c) { c.options.threads = -1; }},
      {"threads must lie in 1..4096, or be 0 for all allowed CPUs, got 4097",
       [](Call& c) { c.options.threads = 4097; }},
      {"the left side of the window must not be negative, got -1", [](Call& c) { c.options.window.left = -1; }},
      {"the right side of the window must not be negative, got -7", [](Call& c) { c.options.window.right = -7; }},
  });
}

TEST(check_messages, wrong_positions) {
  expect_messages({
      {"offset 3 came together with a causal mask, which says its own",
       [](Call& c) {
         c.options.offset = 3;
         c.options.causal = Causal::bottom_right();
       }},
      {"a causal mask by offsets needs the tensor offsets, none came",
       [](Call& c) { c.options.causal = Causal::with_offsets(); }},
      {"offsets came together with a causal mask that says its own",
       [](Call& c) {
         c.options.causal = Causal::top_left();
         c.options.offsets = c.integers({0, 0});
       }},
      {"offsets came together with offset 1",
       [](Call& c) {
         c.options.offset = 1;
         c.options.offsets = c.integers({0, 0});
       }},
      {"offsets must be [2], got [3]",
       [](Call& c) {
         c.options.offsets = c.integers({0, 0, 0});
       }},
      {"offsets must be i64 or i32, got f32", [](Call& c) { c.options.offsets = Call::view(DType::f32, {2}); }},
      {"offset 1152921504606846977 is beyond 2^60", [](Call& c) { c.options.offset = kFar + 1; }},
      {"offset -9223372036854775808 is beyond 2^60", [](Call& c) { c.options.offset = INT64_MIN; }},
      {"the causal offset -1152921504606846977 is beyond 2^60",
       [](Call& c) { c.options.causal = Causal::with_offset(-kFar - 1); }},
      {"offsets[1] = 9223372036854775807 is beyond 2^60",
       [](Call& c) {
         c.options.offsets = c.integers({0, INT64_MAX});
       }},
  });
}

TEST(check_messages, wrong_terms) {
  expect_messages({
      {"bias must be [2 or 1, 4 or 1, 3 or 1, 5 or 1], got [2, 4, 3, 4]",
       [](Call& c) {
         c.options.bias = Call::view(DType::f32, {2, 4, 3, 4});
       }},
      {"bias must have 4 axes as q, got [3, 5]",
       [](Call& c) {
         c.options.bias = Call::view(DType::f32, {3, 5});
       }},
      {"bias must be f32, got f64",
       [](Call& c) {
         c.options.bias = Call::view(DType::f64, {1, 1, 3, 5});
       }},
      {"bias must have 2 axes as q, or 4, got [1, 3, 5]",
       [](Call& c) {
         c.q = Call::view(DType::f16, {3, 8});
         c.k = Call::view(DType::f16, {5, 8});
         c.v = Call::view(DType::f16, {5, 6});
         c.options.bias = Call::view(DType::f16, {1, 3, 5});
       }},
      {"bias must be bf16 or f32, got f16",
       [](Call& c) {
         c.q = Call::view(DType::bf16, {3, 8});
         c.k = Call::view(DType::bf16, {5, 8});
         c.v = Call::view(DType::bf16, {5, 6});
         c.options.bias = Call::view(DType::f16, {3, 5});
       }},
      {"slopes must be [4], got [2]", [](Call& c) { c.options.slopes = Call::view(DType::f32, {2}); }},
      {"slopes must be f32, got bf16", [](Call& c) { c.options.slopes = Call::view(DType::bf16, {4}); }},
      {"sinks must be [4], got [4, 1]",
       [](Call& c) {
         c.options.sinks = Call::view(DType::f32, {4, 1});
       }},
      {"sinks must be f32, got f64", [](Call& c) { c.options.sinks = Call::view(DType::f64, {4}); }},
      {"table must be f32, got f16",
       [](Call& c) {
         c.options.table = Call::view(DType::f16, {4, 8});
       }},
      {"table must be [4, buckets], got [2, 8]",
       [](Call& c) {
         c.options.table = Call::view(DType::f32, {2, 8});
       }},
      {"table must have an even number of bidirectional buckets, at least 2, got 7",
       [](Call& c) {
         c.options.table = Call::view(DType::f32, {4, 7});
       }},
      {"table must have an even number of bidirectional buckets, at least 2, got 0",
       [](Call& c) {
         c.options.table = Call::view(DType::f32, {4, 0});
       }},
      {"table must have at least 1 causal bucket, got 0",
       [](Call& c) {
         c.options.table = Call::view(DType::f32, {4, 0});
         c.options.buckets.kind = Buckets::Kind::causal;
       }},
      {"max_distance must exceed the 8 exact distances of 32 buckets, got 8",
       [](Call& c) {
         c.options.table = Call::view(DType::f32, {4, 32});
         c.options.buckets.max_distance = 8;
       }},
      {"max_distance must exceed the 0 exact distances of 2 buckets, got 0",
       [](Call& c) {
         c.options.table = Call::view(DType::f32, {4, 2});
         c.options.buckets.max_distance = 0;
       }},
  });
}

TEST(check_messages, wrong_masks) {
  expect_messages({
      {"mask must be bool or u8, got f32",
       [](Call& c) {
         c.options.mask = Call::view(DType::f32, {2, 4, 3, 5});
       }},
      {"mask must be [2 or 1, 4 or 1, 3 or 1, 5 or 1], got [2, 2, 3, 5]",
       [](Call& c) {
         c.options.mask = Call::view(DType::boolean, {2, 2, 3, 5});
       }},
      {"key_lengths[1] is 6, outside 0..5",
       [](Call& c) {
         c.options.key_lengths = c.integers({5, 6});
       }},
      {"key_lengths[0] is -1, outside 0..5",
       [](Call& c) {
         c.options.key_lengths = c.integers({-1, 5});
       }},
      {"query_lengths[0] is 4, outside 0..3",
       [](Call& c) {
         c.options.query_lengths = c.integers({4, 3});
       }},
      {"query_lengths must be [2], got [1]", [](Call& c) { c.options.query_lengths = c.integers({3}); }},
      {"key_lengths must be i64 or i32, got u8", [](Call& c) { c.options.key_lengths = Call::view(DType::u8, {2}); }},
      {"key_segment came without query_segment",
       [](Call& c) {
         c.options.key_segment = Call::view(DType::i64, {2, 5});
       }},
      {"query_segment came without key_segment",
       [](Call& c) {
         c.options.query_segment = Call::view(DType::i64, {2, 3});
       }},
      {"query_segment must be [2, 3], got [2, 5]",
       [](Call& c) {
         c.options.query_segment = c.options.key_segment = Call::view(DType::i32, {2, 5});
       }},
      {"key_segment must be i64 or i32, got bool",
       [](Call& c) {
         c.options.query_segment = Call::view(DType::i32, {2, 3});
         c.options.key_segment = Call::view(DType::boolean, {2, 5});
       }},
      {"block 2,2 came without block_mask",
       [](Call& c) {
         c.options.block = {2, 2};
       }},
      {"block_mask needs block sides of at least 1, got 0,0",
       [](Call& c) {
         c.options.block_mask = Call::view(DType::u8, {1, 1, 2, 3});
       }},
      {"block_mask must be [2 or 1, 4 or 1, 2, 3], got [1, 1, 1, 3]",
       [](Call& c) {
         c.options.block_mask = Call::view(DType::u8, {1, 1, 1, 3});
         c.options.block = {2, 2};
       }},
      {"block_mask must be bool or u8, got i32",
       [](Call& c) {
         c.options.block_mask = Call::view(DType::i32, {1, 1, 2, 3});
         c.options.block = {2, 2};
       }},
  });
}

TEST(check_messages, wrong_packed_sequences) {
  const auto packed_with = [](TensorView AttentionOptions::*tensor, DType dtype, const Dims& shape) {
    return [=](Call& c) {
      c.pack({0, 1, 3}, {0, 5, 5});
      c.options.*tensor = Call::view(dtype, shape);
    };
  };
  expect_messages({
      {"query_starts came without key_starts",
       [](Call& c) {
         c.pack({0, 1, 3}, {0, 5, 5});
         c.options.key_starts = {};
       }},
      {"key_starts came without query_starts",
       [](Call& c) {
         c.pack({0, 1, 3}, {0, 5, 5});
         c.options.query_starts = {};
       }},
      {"packed q must be [total, heads, width], got [2, 4, 3, 8]",
       [](Call& c) {
         c.options.query_starts = c.options.key_starts = c.integers({0, 3});
       }},
      {"query_starts must begin at 0, got 1",
       [](Call& c) {
         c.pack({1, 1, 3}, {0, 5, 5});
       }},
      {"query_starts must not fall, got 4 then 3 at 2",
       [](Call& c) {
         c.pack({0, 4, 3}, {0, 5, 5});
       }},
      {"query_starts ends at 2, q has 3 rows",
       [](Call& c) {
         c.pack({0, 1, 2}, {0, 5, 5});
       }},
      {"key_starts ends at 6, k has 5 rows",
       [](Call& c) {
         c.pack({0, 1, 3}, {0, 5, 6});
       }},
      {"key_starts has 2, query_starts has 3",
       [](Call& c) {
         c.pack({0, 1, 3}, {0, 5});
       }},
      {"query_starts must be [sequences + 1], got [0]",
       [](Call& c) {
         c.pack({}, {0, 5});
       }},
      {"key_starts must be i64 or i32, got f32",
       [](Call& c) {
         c.pack({0, 1, 3}, {0, 5, 5});
         c.options.key_starts = Call::view(DType::f32, {3});
       }},
      {"bias came together with packed sequences, which have none",
       packed_with(&AttentionOptions::bias, DType::f32, {4, 3, 5})},
      {"mask came together with packed sequences, which have none",
       packed_with(&AttentionOptions::mask, DType::boolean, {4, 3, 5})},
      {"block_mask came together with packed sequences, which have none",
       packed_with(&AttentionOptions::block_mask, DType::u8, {4, 1, 1})},
      {"key_lengths came together with packed sequences, which have none",
       packed_with(&AttentionOptions::key_lengths, DType::i64, {2})},
      {"query_lengths came together with packed sequences, which have none",
       packed_with(&AttentionOptions::query_lengths, DType::i64, {2})},
      {"query_segment came together with packed sequences, which have none",
       packed_with(&AttentionOptions::query_segment, DType::i64, {2, 3})},
      {"key_segment came together with packed sequences, which have none",
       packed_with(&AttentionOptions::key_segment, DType::i64, {2, 5})},
      {"offsets must be [2], got [3]", packed_with(&AttentionOptions::offsets, DType::i64, {3})},
  });
}

}  // namespace
}  // namespace qkv

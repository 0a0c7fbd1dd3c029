// SPDX-License-Identifier: Apache-2.0
//
// A cache against plain tensors: whatever has been appended, cut off, shared and reordered, attention on it has the
// bits of attention on tensors that hold the same keys.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "operation.h"
#include "qkv/attention/key_value_cache.h"
#include "qkv/support/error.h"
#include "random_stream.h"
#include "slices.h"

namespace qkv::test {
namespace {

Tensor random_tensor(Stream& stream, DType dtype, const Dims& shape) {
  Tensor tensor(dtype, shape);
  const MutableTensorView view = tensor.mutable_view();
  for (int64_t n = 0; n < view.elements(); ++n) store_from_double(dtype, view.at(n), stream.normal());
  return tensor;
}

struct Widths {
  int64_t H, Hkv, D, Dv;
};

/// A cache and what it should hold: for every sequence, key by key, the elements of all heads.
class Twin {
 public:
  Twin(Stream& stream, DType dtype, int64_t sequences, const Widths& widths)
      : stream_(stream),
        dtype_(dtype),
        widths_(widths),
        cache_(sequences, widths.Hkv, widths.D, widths.Dv, dtype),
        keys_(static_cast<size_t>(sequences)) {}

  KeyValueCache& cache() { return cache_; }
  int64_t sequences() const { return static_cast<int64_t>(keys_.size()); }
  int64_t length(int64_t b) const { return static_cast<int64_t>(keys_[static_cast<size_t>(b)].size()); }

  void append(int64_t T) {
    const int64_t B = sequences();
    // Token-major memory: the caller's layout is his own.
    const Tensor k = random_tensor(stream_, dtype_, {B, T, widths_.Hkv, widths_.D});
    const Tensor v = random_tensor(stream_, dtype_, {B, T, widths_.Hkv, widths_.Dv});
    std::vector<int32_t> lengths;
    for (int64_t b = 0; b < B; ++b) lengths.push_back(static_cast<int32_t>(stream_.integer(0, T)));
    cache_.append(heads_first(k), heads_first(v), TensorView(lengths.data(), Dims{B}));
    for (int64_t b = 0; b < B; ++b) remember(b, k, v, b, lengths[static_cast<size_t>(b)]);
  }
  void append_one(int64_t b, int64_t T) {
    const Tensor k = random_tensor(stream_, dtype_, {1, T, widths_.Hkv, widths_.D});
    const Tensor v = random_tensor(stream_, dtype_, {1, T, widths_.Hkv, widths_.Dv});
    const TensorView k4 = heads_first(k);
    const TensorView v4 = heads_first(v);
    cache_.append(b, TensorView(dtype_, k4.data(), {k4.size(1), T, widths_.D}, {k4.stride(1), k4.stride(2), 1}),
                  TensorView(dtype_, v4.data(), {v4.size(1), T, widths_.Dv}, {v4.stride(1), v4.stride(2), 1}));
    remember(b, k, v, 0, T);
  }
  void truncate(int64_t b, int64_t length) {
    cache_.truncate(b, length);
    keys_[static_cast<size_t>(b)].resize(static_cast<size_t>(length));
  }
  void share_prefix(int64_t from, int64_t to, int64_t length) {
    cache_.share_prefix(from, to, length);
    std::vector<Key> copy = keys_[static_cast<size_t>(from)];
    copy.resize(static_cast<size_t>(length));
    keys_[static_cast<size_t>(to)] = copy;
  }
  void reorder(const std::vector<int64_t>& from) {
    cache_.reorder(from);
    std::vector<std::vector<Key>> keys;
    for (const int64_t b : from) keys.push_back(keys_[static_cast<size_t>(b)]);
    keys_ = keys;
  }

  /// Keys or values of one sequence as a tensor [1, Hkv, length, width].
  Tensor plain(int64_t b, bool values) const {
    const int64_t width = values ? widths_.Dv : widths_.D;
    Tensor tensor(dtype_, {1, widths_.Hkv, length(b), width});
    for (int64_t t = 0; t < length(b); ++t) {
      const Key& key = keys_[static_cast<size_t>(b)][static_cast<size_t>(t)];
      const std::vector<char>& bytes = values ? key.v : key.k;
      for (int64_t h = 0; h < widths_.Hkv; ++h) {
        const auto size = static_cast<size_t>(width * size_of(dtype_));
        void* to = tensor.mutable_view().at((h * length(b) + t) * width);
        if (size > 0) std::memcpy(to, bytes.data() + static_cast<size_t>(h) * size, size);
      }
    }
    return tensor;
  }

  /// Attention of Tq queries on the cache and on every sequence alone.
  void expect_same_bits(int64_t Tq, const AttentionOptions& options) {
    const int64_t B = sequences();
    const DType lse_dtype = dtype_ == DType::f64 ? DType::f64 : DType::f32;
    const Tensor q = random_tensor(stream_, dtype_, {B, widths_.H, Tq, widths_.D});
    Tensor out(dtype_, {B, widths_.H, Tq, widths_.Dv});
    Tensor lse(lse_dtype, {B, widths_.H, Tq});
    attention_forward(q.view(), cache_, options, out.mutable_view(), lse.mutable_view());
    for (int64_t b = 0; b < B; ++b) {
      SCOPED_TRACE("sequence " + std::to_string(b) + " of " + std::to_string(length(b)) + " keys, Tq " +
                   std::to_string(Tq));
      ASSERT_EQ(cache_.length(b), length(b));
      AttentionOptions alone = options;
      if (alone.bias) alone.bias = slice(slice(alone.bias, 0, b, b + 1, true), 3, 0, length(b));
      if (alone.mask) alone.mask = slice(slice(alone.mask, 0, b, b + 1, true), 3, 0, length(b));
      Tensor alone_out(dtype_, {1, widths_.H, Tq, widths_.Dv});
      Tensor alone_lse(lse_dtype, {1, widths_.H, Tq});
      attention_forward(slice(q.view(), 0, b, b + 1), plain(b, false).view(), plain(b, true).view(), alone,
                        alone_out.mutable_view(), alone_lse.mutable_view());
      expect_same(slice(out.view(), 0, b, b + 1), alone_out.view());
      expect_same(slice(lse.view(), 0, b, b + 1), alone_lse.view());
    }
  }

 private:
  struct Key {
    std::vector<char> k, v;
  };

  static TensorView heads_first(const Tensor& x) {
    const TensorView& view = x.view();
    return {view.dtype(),
            view.data(),
            {view.size(0), view.size(2), view.size(1), view.size(3)},
            {view.stride(0), view.stride(2), view.stride(1), view.stride(3)}};
  }
  void remember(int64_t b, const Tensor& k, const Tensor& v, int64_t source, int64_t count) {
    const auto row = [&](const Tensor& x, int64_t t) {
      const char* from = static_cast<const char*>(x.view().at(source * x.view().stride(0) + t * x.view().stride(1)));
      const auto size = static_cast<size_t>(x.view().size(2) * x.view().size(3) * size_of(dtype_));
      return std::vector<char>(from, from + size);
    };
    for (int64_t t = 0; t < count; ++t) keys_[static_cast<size_t>(b)].push_back({row(k, t), row(v, t)});
  }
  static void expect_same(const TensorView& a, const TensorView& b) {
    ASSERT_EQ(a.shape(), b.shape());
    for (int64_t n = 0; n < a.elements(); ++n) {
      ASSERT_EQ(std::memcmp(element_address(a, n), element_address(b, n), static_cast<size_t>(size_of(a.dtype()))), 0)
          << "element " << n << ": " << element(a, n) << " cached, " << element(b, n) << " plain";
    }
  }

  Stream& stream_;
  DType dtype_;
  Widths widths_;
  KeyValueCache cache_;
  std::vector<std::vector<Key>> keys_;
};

/// Options that make sense on a cache, each now and then. Owns their tensors.
struct RandomOptions {
  RandomOptions(Stream& stream, Twin& twin, DType dtype, int64_t H, int64_t Tq) {
    const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
    const int64_t longest = twin.cache().longest();
    if (stream.chance(0.6)) options.causal = Causal::bottom_right();
    if (stream.chance(0.3)) options.window = {stream.integer(0, 300), {}};
    if (stream.chance(0.2)) options.softcap = 20;
    if (stream.chance(0.3)) options.slopes = keep(random_tensor(stream, wide, {H}));
    if (stream.chance(0.3)) options.sinks = keep(random_tensor(stream, wide, {H}));
    if (stream.chance(0.3)) {
      const int64_t heads = stream.chance(0.5) ? H : 1;
      options.bias = keep(random_tensor(stream, dtype, {twin.sequences(), heads, Tq, longest}));
    }
    if (stream.chance(0.3)) {
      Tensor mask(DType::boolean, {1, 1, Tq, longest});
      auto* bytes = static_cast<uint8_t*>(mask.mutable_view().data());
      for (int64_t n = 0; n < mask.view().elements(); ++n) bytes[n] = stream.chance(0.8) ? 1 : 0;
      options.mask = keep(std::move(mask));
    }
    options.threads = static_cast<int>(stream.integer(1, 3));
  }
  TensorView keep(Tensor tensor) {
    memory.push_back(std::move(tensor));
    return memory.back().view();
  }
  AttentionOptions options;
  std::vector<Tensor> memory;
};

void change(Stream& stream, Twin& twin) {
  const int64_t B = twin.sequences();
  const int64_t b = stream.integer(0, B - 1);
  switch (stream.integer(0, 5)) {
    case 0: twin.truncate(b, stream.integer(0, twin.length(b))); break;
    case 1: twin.share_prefix(b, stream.integer(0, B - 1), stream.integer(0, twin.length(b))); break;
    case 2: {
      std::vector<int64_t> from;
      for (int64_t n = 0; n < stream.integer(2, 4); ++n) from.push_back(stream.integer(0, B - 1));
      twin.reorder(from);
      break;
    }
    case 3: twin.append_one(b, stream.integer(1, 70)); break;
    default: twin.append(stream.chance(0.5) ? 1 : stream.integer(1, 400)); break;
  }
}

class CacheBits : public testing::TestWithParam<DType> {};

TEST_P(CacheBits, are_those_of_plain_tensors_after_any_changes) {
  for_each_target([&](const std::string&) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      Stream stream(seed);
      const int64_t Hkv = stream.integer(1, 2);
      const Widths widths = {Hkv * stream.integer(1, 5), Hkv, stream.integer(0, 70), stream.integer(1, 70)};
      Twin twin(stream, GetParam(), stream.integer(2, 4), widths);
      for (int step = 0; step < 12; ++step) {
        change(stream, twin);
        const int64_t Tq = stream.chance(0.6) ? stream.integer(1, 3) : stream.integer(1, 90);
        const RandomOptions options(stream, twin, GetParam(), widths.H, Tq);
        twin.expect_same_bits(Tq, options.options);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(dtypes, CacheBits, testing::Values(DType::f64, DType::f32, DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST(key_value_cache, keys_one_by_one_are_keys_at_once) {
  Stream stream(3);
  Twin twin(stream, DType::bf16, 1, {4, 2, 64, 64});
  for (int n = 0; n < 700; ++n) twin.append_one(0, 1);
  twin.expect_same_bits(1, {.causal = Causal::bottom_right()});
  twin.expect_same_bits(300, {.causal = Causal::bottom_right()});  // more rows than share a packed block
}

TEST(key_value_cache, sequences_share_memory_until_they_write) {
  Stream stream(4);
  const Tensor k = random_tensor(stream, DType::f32, {2, 1300, 64});
  const Tensor one = random_tensor(stream, DType::f32, {2, 1, 64});
  KeyValueCache cache(4, 2, 64, 64, DType::f32);
  cache.append(0, k.view(), k.view());
  const int64_t alone = cache.bytes();
  EXPECT_GE(alone, 1300 * 2 * 128 * 4);
  for (int64_t b = 1; b < 4; ++b) cache.share_prefix(0, b, 1300);
  EXPECT_EQ(cache.bytes(), alone);
  cache.append(2, one.view(), one.view());
  EXPECT_GT(cache.bytes(), alone);
  EXPECT_LT(cache.bytes(), 2 * alone);
  cache.reorder({2, 2});
  EXPECT_EQ(cache.sequences(), 2);
  EXPECT_EQ(cache.length(1), 1301);
  EXPECT_LE(cache.bytes(), alone);
}

TEST(key_value_cache, bf16_takes_half_the_memory_of_f32) {
  const auto bytes = [](DType dtype) {
    Stream stream(1);
    KeyValueCache cache(1, 2, 128, 128, dtype);
    const Tensor k = random_tensor(stream, dtype, {2, 512, 128});
    cache.append(0, k.view(), k.view());
    return cache.bytes();
  };
  EXPECT_EQ(2 * bytes(DType::bf16), bytes(DType::f32));
}

TEST(key_value_cache, what_was_cut_off_or_hidden_cannot_leak) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Stream stream(5);
    const Tensor k = random_tensor(stream, dtype, {1, 600, 32});
    Tensor bad(dtype, {1, 9, 32});
    for (int64_t n = 0; n < bad.view().elements(); ++n) {
      store_from_double(dtype, bad.mutable_view().at(n), std::numeric_limits<double>::quiet_NaN());
    }
    KeyValueCache cache(1, 1, 32, 32, dtype);
    cache.append(0, k.view(), k.view());
    const Tensor q = random_tensor(stream, dtype, {3, 1, 32});
    Tensor expected(dtype, {3, 1, 32});
    Tensor out(dtype, {3, 1, 32});
    attention_forward(q.view(), cache, {}, expected.mutable_view());
    const auto expect_unchanged = [&](const AttentionOptions& options) {
      attention_forward(q.view(), cache, options, out.mutable_view());
      EXPECT_EQ(elements(out.view()), elements(expected.view()));
    };
    cache.append(0, bad.view(), bad.view());
    const int64_t length = 600;
    expect_unchanged({.key_lengths = TensorView(&length, Dims{1})});
    cache.truncate(0, 600);
    expect_unchanged({});
  }
}

TEST(key_value_cache, nothing_cached_is_an_empty_row) {
  KeyValueCache cache(2, 1, 8, 8, DType::f32);
  Stream stream(6);
  const Tensor q = random_tensor(stream, DType::f32, {2, 2, 3, 8});
  Tensor out = random_tensor(stream, DType::f32, {2, 2, 3, 8});
  Tensor lse(DType::f32, {2, 2, 3});
  attention_forward(q.view(), cache, {.causal = Causal::bottom_right()}, out.mutable_view(), lse.mutable_view());
  for (const double value : elements(out.view())) EXPECT_EQ(value, 0);
  for (const double value : elements(lse.view())) EXPECT_EQ(value, -std::numeric_limits<double>::infinity());
}

/// The message of the Error that a call throws.
template <class F>
std::string message_of(F call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(key_value_cache, wrong_calls_say_what_is_wrong_and_change_nothing) {
  Stream stream(7);
  const Tensor k = random_tensor(stream, DType::f32, {2, 2, 5, 8});
  const Tensor v = random_tensor(stream, DType::f32, {2, 2, 5, 6});
  const Tensor q = random_tensor(stream, DType::f32, {2, 4, 1, 8});
  Tensor out(DType::f32, {2, 4, 1, 6});
  KeyValueCache cache(2, 2, 8, 6, DType::f32);
  cache.append(k.view(), v.view());
  const std::vector<int64_t> lengths = {1, 6};
  const auto calls = {
      std::pair("cache: v must be [2, 2, 5, 6], got [2, 2, 5, 8]",
                message_of([&] { cache.append(k.view(), k.view()); })),
      std::pair("cache: lengths[1] is 6, outside 0..5",
                message_of([&] { cache.append(k.view(), v.view(), TensorView(lengths.data(), Dims{2})); })),
      std::pair("cache: sequence 2 is none of its 2", message_of([&] { cache.truncate(2, 0); })),
      std::pair("cache: length is 6, sequence 1 has 5 keys", message_of([&] { cache.truncate(1, 6); })),
      std::pair("cache: sequence -1 is none of its 2", message_of([&] {
                  cache.reorder({0, -1});
                })),
      std::pair("attention: the cache has sequences 2, q has 1",
                message_of([&] { attention_forward(slice(q.view(), 0, 0, 1), cache, {}, out.mutable_view()); })),
      std::pair("attention: packed sequences came with a cache", message_of([&] {
                  attention_forward(q.view(), cache, {.query_starts = TensorView(lengths.data(), Dims{2})},
                                    out.mutable_view());
                })),
  };
  for (const auto& [expected, message] : calls) EXPECT_EQ(message, expected);
  EXPECT_EQ(cache.length(0), 5);
  EXPECT_EQ(cache.length(1), 5);
}

}  // namespace
}  // namespace qkv::test

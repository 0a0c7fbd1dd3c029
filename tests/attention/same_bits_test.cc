// SPDX-License-Identifier: Apache-2.0
//
// Promise 2: the same bits for any number of threads, any layout, a batch entry alone, queries alone or in any chunks,
// packed or padded, every time. LongSameBits does it for hundreds of problems on every instruction set of this machine,
// with the label `long`.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "operation.h"
#include "random_stream.h"
#include "slices.h"

namespace qkv::test {
namespace {

/// Random specs that span several query and key blocks, of the backward or of both passes, now and then.
Spec spec_of(uint64_t seed) { return random_spec(50'000 + seed, seed % 16 == 8 ? 1300 : seed % 4 == 0 ? 450 : 140); }

/// Elements of axis `axis` from `begin` on of `all` are those of `part`, to the bit.
void expect_part(const Tensor& all, const Tensor& part, int axis, int64_t begin, const std::string& what) {
  const TensorView of_all = slice(all.view(), axis, begin, begin + part.shape()[axis]);
  ASSERT_EQ(of_all.shape(), part.shape()) << what;
  const auto bytes = static_cast<size_t>(size_of(part.dtype()));
  for (int64_t i = 0; i < of_all.elements(); ++i) {
    ASSERT_EQ(std::memcmp(element_address(of_all, i), element_address(part.view(), i), bytes), 0)
        << what << " element " << i << ": " << element(of_all, i) << " in the whole, " << element(part.view(), i)
        << " alone";
  }
}

void expect_same_for_threads(uint64_t seed) {
  const TestProblem problem(spec_of(seed));
  const AttentionReference one = run_operation(problem, {.threads = 1});
  for (const int threads : {2, 3, 5, 8}) {
    EXPECT_EQ(different_bits(one, run_operation(problem, {.threads = threads})), "")
        << name(problem.spec) << " with " << threads << " threads";
  }
}

TEST(same_bits, for_any_number_of_threads) {
  for (uint64_t seed = 1; seed <= 60; ++seed) expect_same_for_threads(seed);
}

TEST(same_bits, when_many_threads_share_one_head) {
  const TestProblem problem({.seed = 5,
                             .H = 1,
                             .Hkv = 1,
                             .Tq = 900,
                             .Tk = 1300,
                             .D = 32,
                             .Dv = 32,
                             .features = kCausalBottomRight | kSlopes | kBias | kTable | kDropout});
  const AttentionReference one = run_operation(problem, {.threads = 1});
  for (int round = 0; round < 10; ++round) {
    EXPECT_EQ(different_bits(one, run_operation(problem, {.threads = 5})), "") << "round " << round;
  }
}

void expect_same_for_layouts(uint64_t seed) {
  Spec spec = spec_of(seed);
  spec.layout = Layout::contiguous;
  const AttentionReference expected = run_operation(TestProblem(spec));
  for (const Layout layout :
       {Layout::token_major, Layout::reversed, Layout::padded, Layout::strided, Layout::transposed}) {
    spec.layout = layout;
    const TestProblem problem(spec);
    EXPECT_EQ(different_bits(expected, run_operation(problem, {.layout = layout})), "") << name(problem.spec);
  }
}

TEST(same_bits, for_any_layout_of_inputs_and_outputs) {
  for (uint64_t seed = 1; seed <= 40; ++seed) expect_same_for_layouts(seed);
}

/// Returns how many batch entries it compared.
int expect_same_for_batch_entries(uint64_t seed) {
  Spec spec = spec_of(seed);
  spec.features &= ~(kDropout | kPacked);
  const TestProblem problem(spec);
  if (problem.spec.rank != 4 || problem.spec.B < 2) return 0;
  SCOPED_TRACE(name(problem.spec));
  const AttentionReference all = run_operation(problem);
  for (int64_t b = 0; b < problem.spec.B; ++b) {
    const AttentionReference alone = run_operation(batch_entry(problem, b));
    expect_part(all.out, alone.out, 0, b, "out");
    expect_part(all.lse, alone.lse, 0, b, "lse");
    expect_part(all.d_q, alone.d_q, 0, b, "d_q");
    expect_part(all.d_k, alone.d_k, 0, b, "d_k");
    expect_part(all.d_v, alone.d_v, 0, b, "d_v");
  }
  return static_cast<int>(problem.spec.B);
}

TEST(same_bits, of_a_batch_entry_alone) {
  int compared = 0;
  for (uint64_t seed = 1; seed <= 150; ++seed) compared += expect_same_for_batch_entries(seed);
  EXPECT_GT(compared, 30);
}

/// Cuts the queries into chunks, one alone now and then; returns how many.
int expect_same_for_chunks(uint64_t seed) {
  Spec spec = spec_of(seed);
  spec.features &= ~uint32_t{kPacked};
  const TestProblem problem(spec);
  if (problem.spec.Tq < 2) return 0;
  SCOPED_TRACE(name(problem.spec));
  const AttentionReference all = run_operation(problem);
  Stream stream(seed);
  const int64_t side = problem.options.block_mask ? problem.options.block.queries : 1;
  const int axis = problem.q.rank() - 2;
  int chunks = 0;
  for (int64_t begin = 0; begin < problem.spec.Tq; ++chunks) {
    const int64_t length = stream.chance(0.3) ? side : stream.integer(1, problem.spec.Tq) / side * side;
    const int64_t end = std::min(problem.spec.Tq, begin + std::max(side, length));
    const AttentionReference alone = run_operation(query_chunk(problem, begin, end));
    expect_part(all.out, alone.out, axis, begin, "out");
    expect_part(all.lse, alone.lse, axis, begin, "lse");
    expect_part(all.d_q, alone.d_q, axis, begin, "d_q");
    begin = end;
  }
  return chunks;
}

TEST(same_bits, of_queries_in_any_chunks) {
  int compared = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) compared += expect_same_for_chunks(seed);
  EXPECT_GT(compared, 80);
}

TEST(LongSameBits, of_hundreds_of_problems_on_every_instruction_set) {
  for_each_target([](const std::string&) {
    int compared = 0;
    for (uint64_t seed = 1'000; seed < 1'300; ++seed) {
      expect_same_for_threads(seed);
      expect_same_for_layouts(seed);
      compared += expect_same_for_batch_entries(seed) + expect_same_for_chunks(seed);
    }
    EXPECT_GT(compared, 300);
  });
}

TEST(same_bits, of_an_empty_query_alone_under_a_negative_scale) {
  TestProblem problem({.seed = 4, .Tq = 23, .Tk = 23});
  const int64_t length = 3;
  problem.options.scale = -0.3;
  problem.options.query_lengths = TensorView(&length, Dims{1});
  const AttentionReference all = run_operation(problem);
  const AttentionReference alone = run_operation(query_chunk(problem, 5, 9));
  expect_part(all.d_q, alone.d_q, 2, 5, "d_q");
  for (const double value : elements(alone.d_q.view())) EXPECT_FALSE(std::signbit(value));
}

TEST(same_bits, of_lse_from_the_forward_and_from_its_state) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const TestProblem problem(spec_of(seed));
    Tensor out(problem.q.dtype(), problem.out_shape());
    Tensor lse(problem.lse_dtype(), problem.lse_shape());
    attention_forward(problem.q, problem.k, problem.v, problem.options, out.mutable_view(), lse.mutable_view());
    expect_part(run_operation(problem, {.backward = false}).lse, lse, 0, 0, "lse");
  }
}

/// Three sequences of [H, length, width] rows, padded to [B, H, T, width] and packed to [total, H, width].
class Sequences {
 public:
  Sequences(int64_t heads, std::vector<int64_t> lengths, int64_t width, uint64_t seed) : lengths_(std::move(lengths)) {
    const int64_t B = static_cast<int64_t>(lengths_.size());
    int64_t longest = 0;
    int64_t total = 0;
    for (const int64_t length : lengths_) {
      longest = std::max(longest, length);
      total += length;
    }
    padded_ = Tensor(DType::f32, Dims{B, heads, longest, width});
    packed_ = Tensor(DType::f32, Dims{total, heads, width});
    Stream stream(seed);
    auto* padded = static_cast<float*>(padded_.mutable_view().data());
    auto* packed = static_cast<float*>(packed_.mutable_view().data());
    for (int64_t n = 0; n < padded_.view().elements(); ++n) padded[n] = std::numeric_limits<float>::quiet_NaN();
    int64_t start = 0;
    for (int64_t b = 0; b < B; start += lengths_[static_cast<size_t>(b)], ++b) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < lengths_[static_cast<size_t>(b)]; ++i) {
          for (int64_t c = 0; c < width; ++c) {
            const auto value = static_cast<float>(stream.normal());
            padded[((b * heads + h) * longest + i) * width + c] = value;
            packed[((start + i) * heads + h) * width + c] = value;
          }
        }
      }
    }
  }
  const TensorView& padded() const { return padded_.view(); }
  const TensorView& packed() const { return packed_.view(); }

 private:
  std::vector<int64_t> lengths_;
  Tensor padded_, packed_;
};

/// Rows of the packed result against those of the padded one, and zeros beyond the lengths.
void expect_same_sequences(const Tensor& padded, const Tensor& packed, const std::vector<int64_t>& lengths,
                           const char* what) {
  int64_t start = 0;
  for (int64_t b = 0; b < static_cast<int64_t>(lengths.size()); ++b) {
    const int64_t length = lengths[static_cast<size_t>(b)];
    for (int64_t h = 0; h < padded.shape()[1]; ++h) {
      for (int64_t i = 0; i < padded.shape()[2]; ++i) {
        for (int64_t c = 0; c < padded.shape()[3]; ++c) {
          const int64_t at = ((b * padded.shape()[1] + h) * padded.shape()[2] + i) * padded.shape()[3] + c;
          const int64_t in_packed = ((start + i) * padded.shape()[1] + h) * padded.shape()[3] + c;
          const double expected = i < length ? element(packed.view(), in_packed) : 0;
          ASSERT_EQ(element(padded.view(), at), expected) << what << " b " << b << " h " << h << " i " << i;
        }
      }
    }
    start += length;
  }
}

TEST(same_bits, packed_and_padded) {
  const std::vector<int64_t> queries = {37, 250, 0, 101};
  const std::vector<int64_t> keys = {70, 600, 13, 192};
  const Sequences q(4, queries, 24, 1), k(2, keys, 24, 2), v(2, keys, 16, 3), d_out(4, queries, 16, 4);
  const std::vector<int64_t> query_starts = {0, 37, 287, 287, 388};
  const std::vector<int64_t> key_starts = {0, 70, 670, 683, 875};
  const Dims four{4};
  const Dims five{5};
  // Offsets rather than an alignment: bottom_right means the tensors' lengths, which padding changes.
  const std::vector<int64_t> offsets = {33, 350, 13, 91};
  AttentionOptions padded{.causal = Causal::with_offsets(), .window = {.left = 300}};
  padded.offsets = TensorView(offsets.data(), four);
  AttentionOptions packed = padded;
  padded.query_lengths = TensorView(queries.data(), four);
  padded.key_lengths = TensorView(keys.data(), four);
  packed.query_starts = TensorView(query_starts.data(), five);
  packed.key_starts = TensorView(key_starts.data(), five);
  const AttentionReference a = run_operation({q.padded(), k.padded(), v.padded(), d_out.padded(), {}, padded});
  const AttentionReference b = run_operation({q.packed(), k.packed(), v.packed(), d_out.packed(), {}, packed});
  expect_same_sequences(a.out, b.out, queries, "out");
  expect_same_sequences(a.d_q, b.d_q, queries, "d_q");
  expect_same_sequences(a.d_k, b.d_k, keys, "d_k");
  expect_same_sequences(a.d_v, b.d_v, keys, "d_v");
}

}  // namespace
}  // namespace qkv::test

// SPDX-License-Identifier: Apache-2.0
//
// Random blocks: forms, norms, gates, heads, widths, options of attention, dropout, sequences of any length, 0
// included. Gradients against finite differences in f64; bits with and without a state; where rows are causal, cached
// decoding in random chunks.
#include <gtest/gtest.h>

#include <cstring>

#include "finite_differences.h"
#include "layer_parts.h"
#include "qkv/support/error.h"

namespace qkv::test {
namespace {

constexpr DType kF64 = DType::f64;

struct RandomBlock {
  BlockRecipe recipe;
  BlockOptions options;
  std::vector<int64_t> lengths, memory_lengths;
  bool causal = false;
  int64_t rotary_width = 0;
  bool head_norm = false, slopes = false, table = false, sinks = false;
};

MultiHeadAttentionOptions random_attention(Stream& stream, const AttentionSizes& sizes) {
  MultiHeadAttentionOptions attention = {.heads = sizes.H, .kv_heads = sizes.Hkv};
  if (stream.chance(0.3)) attention.attention.softcap = 1 + 3 * stream.uniform();
  if (stream.chance(0.3)) attention.attention.scale = 0.2 + stream.uniform();
  if (stream.chance(0.2)) {
    attention.attention.dropout = 0.4 * stream.uniform();
    attention.attention.seed = stream.bits();
  }
  return attention;
}

RandomBlock random_block(uint64_t seed) {
  Stream stream(seed);
  RandomBlock b;
  AttentionSizes& sizes = b.recipe.sizes;
  sizes.width = stream.integer(1, 20);
  sizes.memory_width = stream.integer(1, 9);
  sizes.Hkv = stream.integer(1, 3);
  sizes.H = sizes.Hkv * stream.integer(1, 3);
  sizes.D = stream.integer(1, 9);
  sizes.Dv = stream.integer(1, 9);
  b.recipe.hidden = stream.integer(1, 30);
  b.recipe.gated = stream.chance(0.5);
  b.options.form = stream.pick({BlockForm::pre_norm, BlockForm::post_norm, BlockForm::sandwich, BlockForm::parallel,
                                BlockForm::parallel_shared});
  b.recipe.sandwich = b.options.form == BlockForm::sandwich;
  b.recipe.cross = b.options.form <= BlockForm::sandwich && stream.chance(0.4);
  b.options.norm = {.kind = stream.chance(0.5) ? NormKind::rms : NormKind::layer,
                    .epsilon = 0.1,  // widths of 1 have no variance
                    .weight_offset = stream.chance(0.3) ? 1.0 : 0.0};
  b.options.feed_forward.activation =
      stream.pick({Activation::none, Activation::gelu, Activation::gelu_tanh, Activation::silu});
  if (stream.chance(0.3)) b.options.feed_forward.dropout = {.p = 0.5 * stream.uniform(), .seed = stream.bits()};
  if (stream.chance(0.3)) b.options.dropout = {.p = 0.5 * stream.uniform(), .seed = stream.bits()};
  b.options.attention = random_attention(stream, sizes);
  b.options.cross = random_attention(stream, sizes);
  b.causal = stream.chance(0.6);
  if (b.causal) b.options.attention.attention.causal = Causal::bottom_right();
  if (stream.chance(0.3)) b.options.attention.attention.window = {stream.integer(0, 4), {}};
  b.rotary_width = stream.chance(0.5) ? sizes.D / 2 * 2 : 0;
  b.head_norm = stream.chance(0.3);
  b.slopes = stream.chance(0.2);
  b.table = stream.chance(0.2);
  b.sinks = stream.chance(0.2);
  for (int64_t n = stream.integer(1, 3); n > 0; --n) {
    b.lengths.push_back(stream.integer(0, 6));
    b.memory_lengths.push_back(stream.integer(0, 5));
  }
  if (b.head_norm) b.options.attention.head_norm = NormalizeOptions{.kind = NormKind::rms, .epsilon = 0.1};
  return b;
}

template <class View>
BlockOf<View> make_block(Source<View>& source, const RandomBlock& b) {
  BlockOf<View> block = make_block(source, b.recipe);
  const AttentionSizes& sizes = b.recipe.sizes;
  if (b.head_norm) {
    block.attention.q_norm = make_norm(source, sizes.D);
    block.attention.k_norm = make_norm(source, sizes.D, false);
  }
  if (b.slopes) block.attention.slopes = source.next({sizes.H}, 0.1, 0.2);
  if (b.table) block.attention.table = source.next({sizes.H, 4});
  if (b.sinks) block.attention.sinks = source.next({sizes.H});
  return block;
}

Tensor starts_from(const std::vector<int64_t>& lengths) {
  Tensor starts(DType::i64, {static_cast<int64_t>(lengths.size()) + 1});
  auto* values = static_cast<int64_t*>(starts.mutable_view().data());
  for (size_t s = 0; s < lengths.size(); ++s) values[s + 1] = values[s] + lengths[s];
  return starts;
}

/// Positions of rows [begin, end) of each sequence in turn.
RotaryTable rotary_of(const RandomBlock& b, const std::vector<int64_t>& begins, const std::vector<int64_t>& ends) {
  std::vector<int64_t> at;
  for (size_t s = 0; s < ends.size(); ++s) {
    for (int64_t i = begins[s]; i < ends[s]; ++i) at.push_back(i);
  }
  return rotary_table(TensorView(at.data(), {static_cast<int64_t>(at.size())}), {.width = b.rotary_width}, kF64);
}

/// A random block with its inputs, as one call.
struct Trial {
  explicit Trial(uint64_t seed)
      : b(random_block(seed)),
        values(kF64, seed),
        block(make_block(values, b)),
        starts(starts_from(b.lengths)),
        memory_starts(starts_from(b.memory_lengths)),
        x(random_rows(kF64, {total(b.lengths), b.recipe.sizes.width}, seed + 1)),
        memory(random_rows(kF64, {total(b.memory_lengths), b.recipe.sizes.memory_width}, seed + 2)),
        rotary(rotary_of(b, std::vector<int64_t>(b.lengths.size()), b.lengths)),
        options(b.options) {
    options.attention.attention.query_starts = starts.view();
    options.cross.attention.query_starts = starts.view();
    options.cross.attention.key_starts = memory_starts.view();
    if (b.rotary_width > 0) options.attention.rotary = &rotary;
  }
  static int64_t total(const std::vector<int64_t>& lengths) {
    int64_t sum = 0;
    for (const int64_t length : lengths) sum += length;
    return sum;
  }
  TensorView memory_view() const { return b.recipe.cross ? memory.view() : TensorView(); }
  Tensor forward(BlockState* state = nullptr) const {
    Tensor y(kF64, x.shape());
    block_forward(x.view(), memory_view(), block, options, y.mutable_view(), state);
    return y;
  }

  RandomBlock b;
  Source<TensorView> values;
  Block block;
  Tensor starts, memory_starts, x, memory;
  RotaryTable rotary;
  BlockOptions options;
};

bool same_bytes(const TensorView& a, const TensorView& b) {
  return a.shape() == b.shape() &&
         (a.elements() == 0 || std::memcmp(a.data(), b.data(), static_cast<size_t>(a.elements()) * 8) == 0);
}

void expect_gradients_of(uint64_t seed) {
  Trial trial(seed);
  Source<MutableTensorView> gradients(kF64);
  const BlockGradients d_block = make_block(gradients, trial.b);
  BlockState state;
  const Tensor y = trial.forward(&state), d_y = random_rows(kF64, y.shape(), seed + 3);
  EXPECT_TRUE(same_bytes(y.view(), trial.forward().view()));
  Tensor d_x(kF64, y.shape()), d_memory(kF64, trial.memory.shape());
  BlockInputGradients d_inputs = {.x = d_x.mutable_view()};
  if (trial.b.recipe.cross) d_inputs.memory = d_memory.mutable_view();
  block_backward(trial.x.view(), trial.memory_view(), trial.block, trial.options, state, d_y.view(), d_inputs, d_block);
  std::vector<Differentiated> all = {{"x", &trial.x, &d_x}};
  if (trial.b.recipe.cross) all.push_back({"memory", &trial.memory, &d_memory});
  for (size_t i = 0; i < trial.values.tensors.size(); ++i) {
    all.push_back({concat("parameter ", i), &trial.values.tensors[i], &gradients.tensors[i]});
  }
  expect_gradients(all, [&](double* magnitude) { return inner_product(d_y, trial.forward(), magnitude); });
}

/// Rows [begin, end) of every sequence, gathered.
Tensor gathered(const Trial& trial, const Tensor& rows, const std::vector<int64_t>& begins,
                const std::vector<int64_t>& ends) {
  int64_t count = 0;
  for (size_t s = 0; s < ends.size(); ++s) count += ends[s] - begins[s];
  const int64_t width = rows.shape()[1];
  Tensor result(kF64, {count, width});
  auto* to = static_cast<double*>(result.mutable_view().data());
  int64_t first = 0;
  for (size_t s = 0; s < ends.size(); ++s) {
    const auto* from = static_cast<const double*>(rows.view().data()) + (first + begins[s]) * width;
    to = std::copy_n(from, (ends[s] - begins[s]) * width, to);
    first += trial.b.lengths[s];
  }
  return result;
}

void expect_cached(uint64_t seed) {
  Trial trial(seed);
  // What a later row may change for an earlier one has no cached form, nor has dropout that counts rows of the call.
  const bool counts_rows = trial.b.options.dropout.p != 0 || trial.b.options.feed_forward.dropout.p != 0 ||
                           (trial.b.recipe.cross && trial.b.options.cross.attention.dropout != 0);
  if (!trial.b.causal || counts_rows) return;
  const Tensor expected = trial.forward();
  const AttentionSizes& sizes = trial.b.recipe.sizes;
  const auto sequences = static_cast<int64_t>(trial.b.lengths.size());
  KeyValueCache self(sequences, sizes.Hkv, sizes.D, sizes.Dv, kF64),
      cross(sequences, sizes.Hkv, sizes.D, sizes.Dv, kF64);
  if (trial.b.recipe.cross) {
    multi_head_attention_append(trial.memory.view(), trial.memory_starts.view(), trial.block.cross, trial.options.cross,
                                cross);
  }
  Stream stream(seed + 9);
  std::vector<int64_t> begins(trial.b.lengths.size()), ends = begins;
  while (begins != trial.b.lengths) {
    for (size_t s = 0; s < ends.size(); ++s) ends[s] = std::min(trial.b.lengths[s], begins[s] + stream.integer(0, 3));
    const Tensor x = gathered(trial, trial.x, begins, ends), wanted = gathered(trial, expected, begins, ends);
    std::vector<int64_t> lengths;
    for (size_t s = 0; s < ends.size(); ++s) lengths.push_back(ends[s] - begins[s]);
    const Tensor starts = starts_from(lengths);
    const RotaryTable rotary = rotary_of(trial.b, begins, ends);
    BlockOptions options = trial.options;
    options.attention.attention.query_starts = starts.view();
    options.cross.attention.query_starts = starts.view();
    options.cross.attention.key_starts = {};
    if (trial.b.rotary_width > 0) options.attention.rotary = &rotary;
    Tensor y(kF64, x.shape());
    block_cached(x.view(), trial.block, options, {&self, trial.b.recipe.cross ? &cross : nullptr}, y.mutable_view());
    ASSERT_TRUE(same_bytes(y.view(), wanted.view()));
    begins = ends;
  }
}

void expect_seeds(uint64_t first, uint64_t count) {
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    expect_gradients_of(seed);
    expect_cached(seed);
  }
}

TEST(nn_random_blocks, gradients_and_cached_bits) { expect_seeds(1, 40); }

TEST(Long_nn_random_blocks, gradients_and_cached_bits) { expect_seeds(1000, 3000); }

}  // namespace
}  // namespace qkv::test

// SPDX-License-Identifier: Apache-2.0
//
// A row has the same bits with and without a state, whatever its batch and the number of threads, packed weights or
// not, and by cached decoding in any chunks; on every instruction set, in f32 and bf16.
#include <gtest/gtest.h>

#include <cstring>

#include "layer_parts.h"
#include "operation.h"
#include "qkv/support/error.h"

namespace qkv::test {
namespace {

TensorView rows_of(const Tensor& tensor, int64_t begin, int64_t end) {
  const TensorView& view = tensor.view();
  return {view.dtype(), view.at(begin * view.stride(0)), {end - begin, view.size(1)}, view.strides()};
}
MutableTensorView rows_of(Tensor& tensor, int64_t begin, int64_t end) {
  const MutableTensorView view = tensor.mutable_view();
  return {view.dtype(), view.at(begin * view.stride(0)), {end - begin, view.size(1)}, view.strides()};
}

bool same_bits(const TensorView& a, const TensorView& b) {
  const Tensor x = converted(a, a.dtype()), y = converted(b, b.dtype());
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         std::memcmp(x.view().data(), y.view().data(), static_cast<size_t>(a.elements() * size_of(a.dtype()))) == 0;
}

struct Model {
  DType activations, weights;
};
constexpr Model kModels[] = {
    {DType::f32, DType::f32}, {DType::f32, DType::bf16}, {DType::bf16, DType::bf16}, {DType::f64, DType::f64}};

constexpr int64_t kWidth = 48;
constexpr int64_t kLengths[] = {9, 1, 20};
constexpr int64_t kRows = 30;

/// Three sequences of 9, 1 and 20 rows through two causal blocks with rotation, windows, soft-cap and a gate.
struct Setting {
  explicit Setting(const Model& model, BlockForm form)
      : values(model.weights, 3), starts(starts_of({9, 1, 20})), x(random_rows(model.activations, {kRows, kWidth}, 7)) {
    BlockRecipe recipe;
    recipe.sizes = {.width = kWidth, .memory_width = kWidth, .H = 4, .Hkv = 2, .D = 12, .Dv = 12};
    recipe.hidden = 70;
    recipe.gated = true;
    recipe.sandwich = form == BlockForm::sandwich;
    stack = make_stack(values, recipe, 2);
    Tensor at(DType::i64, {kRows});
    auto* position = static_cast<int64_t*>(at.mutable_view().data());
    for (const int64_t length : kLengths) {
      for (int64_t i = 0; i < length; ++i) *position++ = i;
    }
    positions = std::move(at);
    BlockOptions block = {.form = form, .norm = {.kind = NormKind::rms}};
    block.feed_forward.activation = Activation::silu;
    block.attention.heads = 4;
    block.attention.kv_heads = 2;
    block.attention.attention.causal = Causal::bottom_right();
    block.attention.attention.window = {7, {}};
    block.attention.attention.softcap = 20;
    options = {.blocks = {block}, .final_norm = NormalizeOptions{}};
  }

  RotaryTable rotary(int64_t begin, int64_t end) const {
    const TensorView at(DType::i64, positions.view().at(begin), {end - begin});
    return rotary_table(at, {.width = 8}, x.dtype() == DType::f64 ? DType::f64 : DType::f32);
  }

  /// All sequences at once.
  Tensor run(int threads, StackState* state = nullptr) const {
    StackOptions now = options;
    const RotaryTable table = rotary(0, kRows);
    now.blocks[0].threads = now.blocks[0].attention.threads = now.blocks[0].feed_forward.threads = threads;
    now.blocks[0].attention.rotary = &table;
    now.blocks[0].attention.attention.query_starts = starts.view();
    Tensor y(x.dtype(), x.shape());
    stack_forward(x.view(), {}, stack, now, y.mutable_view(), state);
    return y;
  }

  Source<TensorView> values;
  Tensor starts, positions, x;
  Stack stack;
  StackOptions options;
};

template <class Body>
void for_each_setting(const Body& body) {
  for_each_target([&](const std::string&) {
    for (const Model& model : kModels) {
      for (const BlockForm form :
           {BlockForm::pre_norm, BlockForm::post_norm, BlockForm::sandwich, BlockForm::parallel}) {
        SCOPED_TRACE(concat(name(model.activations), " ", name(model.weights), " form ", static_cast<int>(form)));
        Setting setting(model, form);
        body(setting);
      }
    }
  });
}

TEST(nn_same_bits, threads_states_and_packed_weights) {
  for_each_setting([](Setting& setting) {
    const Tensor expected = setting.run(1);
    StackState state;
    EXPECT_TRUE(same_bits(expected.view(), setting.run(3).view())) << "threads";
    EXPECT_TRUE(same_bits(expected.view(), setting.run(2, &state).view())) << "state";
    pack(setting.stack);
    EXPECT_TRUE(same_bits(expected.view(), setting.run(1).view())) << "packed weights";
  });
}

TEST(nn_same_bits, a_sequence_alone) {
  for_each_setting([](Setting& setting) {
    const Tensor expected = setting.run(1);
    int64_t begin = 0;
    for (const int64_t length : kLengths) {
      StackOptions now = setting.options;
      const RotaryTable table = setting.rotary(begin, begin + length);
      now.blocks[0].attention.rotary = &table;
      Tensor y(setting.x.dtype(), {length, kWidth});
      stack_forward(rows_of(setting.x, begin, begin + length), {}, setting.stack, now, y.mutable_view());
      EXPECT_TRUE(same_bits(y.view(), rows_of(expected, begin, begin + length))) << "sequence of " << length;
      begin += length;
    }
  });
}

/// One sequence through a cache, `chunk` rows at a time.
void expect_cached(const Setting& setting, const Tensor& expected, int64_t begin, int64_t length, int64_t chunk) {
  std::vector<KeyValueCache> caches;
  for (int i = 0; i < 2; ++i) caches.emplace_back(1, 2, 12, 12, setting.x.dtype());
  const std::vector<BlockCache> both = {{&caches[0]}, {&caches[1]}};
  Tensor y(setting.x.dtype(), {length, kWidth});
  for (int64_t t = 0; t < length; t += chunk) {
    const int64_t end = std::min(length, t + chunk);
    StackOptions now = setting.options;
    const RotaryTable table = setting.rotary(begin + t, begin + end);
    now.blocks[0].attention.rotary = &table;
    stack_cached(rows_of(setting.x, begin + t, begin + end), setting.stack, now, both, rows_of(y, t, end));
  }
  EXPECT_TRUE(same_bits(y.view(), rows_of(expected, begin, begin + length))) << length << " in chunks of " << chunk;
}

TEST(nn_same_bits, cached_decoding_in_any_chunks) {
  for_each_setting([](Setting& setting) {
    const Tensor expected = setting.run(1);
    for (const int64_t chunk : {1, 3, 20}) {
      expect_cached(setting, expected, 0, 9, chunk);
      expect_cached(setting, expected, 10, 20, chunk);
    }
  });
}

TEST(nn_same_bits, cached_prefill_of_a_ragged_batch) {
  for_each_setting([](Setting& setting) {
    const Tensor expected = setting.run(1);
    std::vector<KeyValueCache> caches;
    for (int i = 0; i < 2; ++i) caches.emplace_back(3, 2, 12, 12, setting.x.dtype());
    const std::vector<BlockCache> both = {{&caches[0]}, {&caches[1]}};
    // First 4, 0 and 19 rows of the sequences, then the others.
    const Tensor first = starts_of({4, 0, 19}), second = starts_of({5, 1, 1});
    const std::vector<std::pair<int64_t, int64_t>> parts[] = {{{0, 4}, {9, 9}, {10, 29}}, {{4, 9}, {9, 10}, {29, 30}}};
    for (int call = 0; call < 2; ++call) {
      const Tensor& starts = call == 0 ? first : second;
      const int64_t rows = call == 0 ? 23 : 7;
      Tensor x(setting.x.dtype(), {rows, kWidth}), y(setting.x.dtype(), {rows, kWidth}), at(DType::i64, {rows});
      int64_t row = 0;
      for (const auto& [begin, end] : parts[call]) {
        copy(rows_of(setting.x, begin, end), rows_of(x, row, row + end - begin));
        for (int64_t n = begin; n < end; ++n, ++row) {
          std::memcpy(at.mutable_view().at(row), setting.positions.view().at(n), sizeof(int64_t));
        }
      }
      const DType wide = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
      const RotaryTable table = rotary_table(at.view(), {.width = 8}, wide);
      StackOptions now = setting.options;
      now.blocks[0].attention.rotary = &table;
      now.blocks[0].attention.attention.query_starts = starts.view();
      stack_cached(x.view(), setting.stack, now, both, y.mutable_view());
      row = 0;
      for (const auto& [begin, end] : parts[call]) {
        EXPECT_TRUE(same_bits(rows_of(y, row, row + end - begin), rows_of(expected, begin, end))) << begin;
        row += end - begin;
      }
    }
  });
}

TEST(nn_same_bits, gradients_for_any_number_of_threads) {
  const Model model = {DType::f32, DType::f32};
  Setting setting(model, BlockForm::pre_norm);
  const Tensor d_y = random_rows(DType::f32, {kRows, kWidth}, 8);
  BlockRecipe recipe;
  recipe.sizes = {.width = kWidth, .memory_width = kWidth, .H = 4, .Hkv = 2, .D = 12, .Dv = 12};
  recipe.hidden = 70;
  recipe.gated = true;
  std::vector<Tensor> results[2];
  for (const int threads : {1, 3}) {
    StackState state;
    setting.run(threads, &state);
    StackOptions now = setting.options;
    const RotaryTable table = setting.rotary(0, kRows);
    now.blocks[0].threads = now.blocks[0].attention.threads = now.blocks[0].feed_forward.threads = threads;
    now.blocks[0].attention.rotary = &table;
    now.blocks[0].attention.attention.query_starts = setting.starts.view();
    Source<MutableTensorView> gradients(DType::f32);
    const StackGradients d_stack = make_stack(gradients, recipe, 2);
    Tensor d_x(DType::f32, {kRows, kWidth});
    stack_backward(setting.x.view(), {}, setting.stack, now, state, d_y.view(), {.x = d_x.mutable_view()}, d_stack);
    std::vector<Tensor>& all = results[threads == 1 ? 0 : 1];
    all.assign(gradients.tensors.begin(), gradients.tensors.end());
    all.push_back(d_x);
  }
  for (size_t i = 0; i < results[0].size(); ++i) {
    EXPECT_TRUE(same_bits(results[0][i].view(), results[1][i].view())) << "gradient " << i;
  }
}

}  // namespace
}  // namespace qkv::test

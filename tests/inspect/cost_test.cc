// SPDX-License-Identifier: Apache-2.0
//
// Costs by hand, and against what kernels count and layers keep.
#include "qkv/inspect/cost.h"

#include <gtest/gtest.h>

#include <limits>

#include "models/transformer_parts.h"
#include "qkv/nn/stack.h"
#include "qkv/support/error.h"
#include "qkv/support/work_count.h"
#include "random_stream.h"
#include "tiny_models.h"

namespace qkv::test {
namespace {

/// One layer of width 8 with a feed-forward of 32.
ModelConfig small(int64_t heads, const char* more = "") {
  return parse_model_config(concat(R"({"model_type": "bert", "vocab_size": 10, "hidden_size": 8, "num_hidden_layers": 1,
    "intermediate_size": 32, "max_position_embeddings": 16, "num_attention_heads": )",
                                   heads, more, "}"),
                            "small");
}

TEST(Cost, FourTokensOfWidthEight) {
  const ModelCost cost = model_cost(small(1), {.tokens = 4});
  EXPECT_EQ(cost.prefill.projections, 1024);
  EXPECT_EQ(cost.prefill.scores_and_values, 256);
  EXPECT_EQ(cost.prefill.feed_forward, 2048);
  EXPECT_EQ(cost.prefill.total(), 3328);
  EXPECT_EQ(cost.prefill.score_entries, 16);
  EXPECT_EQ(cost.parameters.projections, 256);
  const ModelCost two_heads = model_cost(small(2), {.tokens = 4});
  EXPECT_EQ(two_heads.prefill.score_entries, 32);
  EXPECT_EQ(two_heads.parameters.projections, 256);
  EXPECT_EQ(two_heads.prefill.total(), 3328);
  EXPECT_EQ(cost.decode.total(), 0);
  EXPECT_EQ(cost.cache_bytes, 0);
}

TEST(Cost, CausalAndWindowedPairsAreExact) {
  for (const int64_t n : {1, 2, 6, 7, 8, 20}) {
    for (const int64_t seen : {0, 1, 5, 6, 7, 30}) {
      const ModelCost cost = model_cost(tiny_model("qwen2").config(), {.tokens = n, .cache = seen});
      int64_t pairs = 0;
      for (int64_t i = seen; i < seen + n; ++i) pairs += (i + 1) + 2 * std::min<int64_t>(i + 1, 5);
      EXPECT_EQ(cost.prefill.score_entries, 4 * pairs) << n << " after " << seen;
      const int64_t last = seen + n;
      EXPECT_EQ(cost.decode.score_entries, 4 * (last + 2 * std::min<int64_t>(last, 5)));
    }
  }
}

TEST(Cost, CacheBytes) {
  // layers x kv heads x context x (D + Dv) x bytes
  EXPECT_EQ(model_cost(tiny_model("llama").config(), {.tokens = 10, .cache = 5}).cache_bytes, 2 * 2 * 15 * 16 * 4);
  EXPECT_EQ(model_cost(tiny_model("llama").config(), {.tokens = 10, .dtype = DType::bf16}).cache_bytes,
            2 * 2 * 10 * 16 * 2);
  const CostQuery both{.tokens = 10, .memory_tokens = 7};
  EXPECT_EQ(model_cost(tiny_model("t5").config(), both).cache_bytes, 3 * 3 * 17 * 20 * 4);
}

TEST(Cost, InferenceActivationsHoldWhatLivesInTheWidestMoment) {
  const auto prefill = [](const char* name, const CostQuery& query) {
    return model_cost(tiny_model(name).config(), query).prefill.activation_bytes;
  };
  // Rows and their norm, queries and outputs twice, a rotary table; logits and rows.
  EXPECT_EQ(prefill("mistral", {.tokens = 10}), 10 * (4 * (2 * 32 + 4 * 32) + 4 * 8));
  EXPECT_EQ(prefill("mistral", {.tokens = 10, .dtype = DType::bf16}), 10 * (2 * (2 * 32 + 4 * 32) + 4 * 8));
  EXPECT_EQ(model_cost(tiny_model("mistral").config(), {.tokens = 10, .cache = 5}).decode.activation_bytes,
            4 * (2 * 32 + 4 * 32) + 4 * 8);
  // A sandwich: what the sublayer gave, too. In parallel: the inputs of both sublayers.
  EXPECT_EQ(prefill("gemma2", {.tokens = 10}), 10 * (4 * (3 * 32 + 4 * 48) + 4 * 12));
  EXPECT_EQ(prefill("gpt_neox", {.tokens = 10}), 10 * (4 * (3 * 48 + 4 * 48) + 4 * 4));
  EXPECT_EQ(prefill("gpt_neox_serial", {.tokens = 10}), 10 * (4 * (2 * 48 + 4 * 48) + 4 * 16));
  // An encoder's queries, keys, values and outputs; the logits are wider, with the rows that the head reads.
  EXPECT_EQ(prefill("bert", {.tokens = 10}), 10 * 4 * (2 * 24 + 4 * 24));
  ModelConfig many_words = small(1);
  many_words.vocabulary = 100;
  EXPECT_EQ(model_cost(many_words, {.tokens = 4}).prefill.activation_bytes, 4 * 4 * (100 + 2 * 8));
  // The encoder's pass where the memory is long, else the decoder's; a step does not run the encoder.
  EXPECT_EQ(prefill("t5", {.tokens = 2, .memory_tokens = 50}), 50 * 4 * (2 * 24 + 4 * 30));
  EXPECT_EQ(prefill("t5", {.tokens = 50, .memory_tokens = 2}), 50 * 4 * (2 * 24 + 4 * 30));
  EXPECT_EQ(model_cost(tiny_model("t5").config(), {.tokens = 2, .memory_tokens = 50}).decode.activation_bytes,
            4 * (2 * 24 + 4 * 30));
}

TEST(Cost, APositionTableEnds) {
  const ModelConfig gpt2 = tiny_model("gpt2").config(), bart = tiny_model("bart").config();
  EXPECT_NO_THROW(model_cost(gpt2, {.tokens = 200, .cache = 100}));
  EXPECT_THROW(model_cost(gpt2, {.tokens = 201, .cache = 100}), Error);
  EXPECT_THROW(model_cost(bart, {.tokens = 4, .memory_tokens = 301}), Error);
  EXPECT_THROW(model_cost(small(1), {.tokens = 17}), Error);
  EXPECT_NO_THROW(model_cost(tiny_model("mistral").config(), {.tokens = int64_t{1} << 20}));
}

TEST(Cost, RefusesWhatDoesNotFit) {
  EXPECT_THROW(model_cost(small(1), {.tokens = 0}), Error);
  EXPECT_THROW(model_cost(small(1), {.tokens = 4, .cache = 1}), Error);
  EXPECT_THROW(model_cost(small(1), {.tokens = 4, .memory_tokens = 1}), Error);
  EXPECT_THROW(model_cost(tiny_model("t5").config(), {.tokens = 4}), Error);
  EXPECT_THROW(model_cost(small(1), {.tokens = std::numeric_limits<int64_t>::max()}), Error);
  EXPECT_THROW(model_cost(small(1), {.tokens = int64_t{1} << 40}), Error);
}

/// Whatever a file holds, it becomes a config whose cost can be counted, or an Error.
TEST(Cost, MutatedConfigsAreCountedOrRefused) {
  const char* const pieces[] = {"0", "-1", "1e30", "2147483648", "null", "true", "\"x\"", "[]", "{}", "0.5", ":", ","};
  Stream random(17);
  int accepted = 0, refused = 0;
  for (const TinyModel& model : tiny_models()) {
    for (int round = 0; round < 300; ++round) {
      std::string text = model.json;
      for (int64_t change = random.integer(1, 3); change > 0; --change) {
        const auto at = static_cast<size_t>(random.integer(0, static_cast<int64_t>(text.size()) - 1));
        if (random.chance(0.5)) {  // a number, or the rest of one, becomes something else
          const size_t digit = text.find_first_of("0123456789", at);
          if (digit != std::string::npos) text.replace(digit, 1, random.pick(pieces));
        } else {
          text[at] = static_cast<char>(random.integer(32, 126));
        }
      }
      try {
        const ModelConfig config = parse_model_config(text, "c");
        EXPECT_GE(config.main_stack().layers.size(), 1U);
        model_cost(config, {.tokens = 3, .memory_tokens = config.kind == ModelKind::encoder_decoder ? 2 : 0});
        ++accepted;
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 100);
}

std::vector<uint32_t> tokens_of(int64_t count) {
  std::vector<uint32_t> tokens;
  for (int64_t n = 0; n < count; ++n) tokens.push_back(static_cast<uint32_t>(n * 7 % 61));
  return tokens;
}

class Counting {
 public:
  Counting() { count_work(true); }
  ~Counting() { count_work(false); }
};

class Counted : public ::testing::TestWithParam<TinyModel> {
 protected:
  ModelConfig config_ = GetParam().config();
  CostQuery query_{.tokens = 29,
                   .memory_tokens = config_.kind == ModelKind::encoder_decoder ? 13 : 0,
                   .cache = config_.has_decoder() ? 8 : 0};

  void expect_predicted(DType dtype) const;
};

void expect_counted(const PassCost& pass, bool with_head) {
  const WorkCount count = work_count();
  EXPECT_EQ(count.multiplies, pass.projections + pass.feed_forward + (with_head ? pass.head : 0));
  EXPECT_EQ(count.score_multiplies, pass.scores_and_values);
  EXPECT_EQ(count.score_entries, pass.score_entries);
}

void Counted::expect_predicted(DType dtype) const {
  const Transformer model = Transformer::random(config_, 1, {.dtype = dtype, .threads = 2});
  const ModelCost cost = model_cost(config_, query_);
  const std::vector<uint32_t> tokens = tokens_of(query_.tokens), before = tokens_of(query_.cache);
  if (!config_.has_decoder()) {
    const Counting counting;
    model.logits({tokens});
    return expect_counted(cost.prefill, true);
  }
  const std::vector<uint32_t> memory = tokens_of(query_.memory_tokens);
  const bool both = config_.kind == ModelKind::encoder_decoder;
  const auto start = [&] { return both ? model.start(TokenBatch{memory}) : model.start(1); };
  DecoderState state = start();
  {
    const Counting counting;
    if (both) state = start();  // the encoder's part belongs to the prefill
    const WorkCount encoder = work_count();
    EXPECT_EQ(encoder.multiplies > 0, both);
  }
  model.decode(state, {before});
  {
    const Counting counting;
    model.decode(state, {tokens}, LogitRows::all);
    if (both) start();
    expect_counted(cost.prefill, true);
  }
  state.truncate(0, query_.cache + query_.tokens - 1);
  const Counting counting;
  model.decode(state, {std::span(tokens).last(1)});
  expect_counted(cost.decode, true);
}

TEST_P(Counted, PredictionsEqualWhatKernelsCount) { expect_predicted(DType::f32); }
TEST_P(Counted, PredictionsEqualWhatKernelsOnPairsCount) { expect_predicted(DType::bf16); }

TEST_P(Counted, ParametersAreThoseOfTheCheckpoint) {
  models::Checkpoint checkpoint = models::Checkpoint::random(1);
  models::bind_weights(checkpoint, config_);
  int64_t total = 0;
  for (const auto& [name, view] : checkpoint.parameters()) total += view.elements();
  EXPECT_EQ(model_cost(config_, query_).parameters.total(), total);
}

int64_t bytes_of(const Tensor& tensor) { return tensor ? tensor.view().elements() * size_of(tensor.dtype()) : 0; }
int64_t bytes_of(const NormalizeState& state) { return bytes_of(state.mean) + bytes_of(state.inverse); }
int64_t bytes_of(const SublayerState& state) {
  return bytes_of(state.normed) + bytes_of(state.before) + bytes_of(state.branch) + bytes_of(state.sum) +
         bytes_of(state.after);
}
int64_t bytes_of(const MultiHeadAttentionState& state) {
  return bytes_of(state.q) + bytes_of(state.k) + bytes_of(state.v) + bytes_of(state.q_unnormed) +
         bytes_of(state.k_unnormed) + bytes_of(state.q_norm) + bytes_of(state.k_norm) + bytes_of(state.heads) +
         bytes_of(state.attention.row_max) + bytes_of(state.attention.row_sum) + bytes_of(state.attention.wide_out);
}
int64_t bytes_of(const StackState& state) {
  int64_t bytes = bytes_of(state.final_norm);
  for (const Tensor& input : state.inputs) bytes += bytes_of(input);
  for (const BlockState& block : state.blocks) {
    bytes += bytes_of(block.attention_part) + bytes_of(block.cross_part) + bytes_of(block.feed_forward_part) +
             bytes_of(block.attention) + bytes_of(block.cross) + bytes_of(block.feed_forward.before) +
             bytes_of(block.feed_forward.up) + bytes_of(block.feed_forward.hidden) + bytes_of(block.after_attention) +
             bytes_of(block.after_cross);
  }
  return bytes;
}

/// A writable twin of every parameter, for its gradient.
template <class View, class Twin>
void twin(const LinearOf<View>& from, LinearOf<Twin>& to, std::vector<Tensor>& owned) {
  const auto make = [&](const View& view) {
    return view ? owned.emplace_back(DType::f32, view.shape()).mutable_view() : MutableTensorView();
  };
  to.weight = make(from.weight);
  to.bias = make(from.bias);
}

StackGradients gradients_of(const Stack& stack, std::vector<Tensor>& owned) {
  StackGradients gradients;
  for (const Block& block : stack.blocks) {
    BlockGradients& twins = gradients.blocks.emplace_back();
    twin(block.attention.q, twins.attention.q, owned);
    twin(block.attention.k, twins.attention.k, owned);
    twin(block.attention.v, twins.attention.v, owned);
    twin(block.attention.out, twins.attention.out, owned);
    twin(block.cross.q, twins.cross.q, owned);
    twin(block.cross.k, twins.cross.k, owned);
    twin(block.cross.v, twins.cross.v, owned);
    twin(block.cross.out, twins.cross.out, owned);
    twin(block.feed_forward.up, twins.feed_forward.up, owned);
    twin(block.feed_forward.gate, twins.feed_forward.gate, owned);
    twin(block.feed_forward.down, twins.feed_forward.down, owned);
  }
  return gradients;
}

TEST_P(Counted, TrainingCountsAndKeepsWhatIsPredicted) {
  models::Checkpoint checkpoint = models::Checkpoint::random(1);
  const models::ModelWeights weights = models::bind_weights(checkpoint, config_);
  const bool both = config_.kind == ModelKind::encoder_decoder;
  const int64_t m = query_.memory_tokens, n = query_.tokens;
  query_.cache = 0;
  const models::TokenRows source = models::token_rows({tokens_of(m)}, config_, {}, "tokens");
  const models::TokenRows target = models::token_rows({tokens_of(n)}, config_, {}, "tokens");
  const bool decodes = config_.has_decoder();
  const StackConfig& main = config_.main_stack();
  const Stack& stack = decodes ? weights.decoder : weights.encoder;
  const models::BoundOptions options(models::stack_options(config_, main, decodes, 2), config_, main, target,
                                     source.starts.view());
  const models::BoundOptions encoder_options(models::stack_options(config_, config_.encoder, false, 2), config_,
                                             config_.encoder, source, {});
  Tensor x(DType::f32, {n, config_.width}), y(DType::f32, {n, config_.width});
  Tensor memory_rows(DType::f32, {m, config_.width}), memory(DType::f32, {m, config_.width});
  Tensor d_memory(DType::f32, {m, config_.width});
  StackState state, encoder_state;
  std::vector<Tensor> owned;
  const StackGradients gradients = gradients_of(stack, owned), encoder_gradients = gradients_of(weights.encoder, owned);
  const Counting counting;
  const TensorView memory_view = both ? memory.view() : TensorView();
  if (both) {
    stack_forward(memory_rows.view(), {}, weights.encoder, *encoder_options, memory.mutable_view(), &encoder_state);
  }
  stack_forward(x.view(), memory_view, stack, *options, y.mutable_view(), &state);
  BlockInputGradients inputs{.x = x.mutable_view(), .memory = {}};
  if (both) inputs.memory = d_memory.mutable_view();
  const Tensor kept_x = converted(x.view(), DType::f32);
  stack_backward(kept_x.view(), memory_view, stack, *options, state, y.view(), inputs, gradients);
  if (both) {
    const Tensor kept = converted(memory_rows.view(), DType::f32);
    stack_backward(kept.view(), {}, weights.encoder, *encoder_options, encoder_state, d_memory.view(),
                   {.x = memory_rows.mutable_view(), .memory = {}}, encoder_gradients);
  }
  const ModelCost cost = model_cost(config_, query_);
  expect_counted(cost.training, false);
  int64_t kept = bytes_of(state) + bytes_of(x) + bytes_of(y) + 4 * n * config_.vocabulary;
  if (both) kept += bytes_of(encoder_state) + bytes_of(memory_rows) + bytes_of(memory);
  EXPECT_EQ(cost.training.activation_bytes, kept);
}

INSTANTIATE_TEST_SUITE_P(All, Counted, ::testing::ValuesIn(tiny_models()),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace qkv::test

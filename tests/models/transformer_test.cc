// SPDX-License-Identifier: Apache-2.0
//
// Every family, with random weights: the same bits alone and in a batch, in one pass and through the cache, and with
// any number of threads. What the numbers are is held against Transformers by the Python tests.
#include "qkv/models/transformer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "models/transformer_parts.h"
#include "qkv/support/error.h"
#include "qkv/support/random.h"
#include "tiny_models.h"

namespace qkv::test {
namespace {

struct Case {
  TinyModel model;
  DType dtype;
};

std::vector<Case> cases(bool decoders) {
  std::vector<Case> all;
  for (const TinyModel& model : tiny_models()) {
    if (model.config().has_decoder() != decoders) continue;
    for (const DType dtype : {DType::f32, DType::bf16}) all.push_back({model, dtype});
  }
  return all;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return std::string(info.param.model.name) + "_" + std::string(name(info.param.dtype));
}

std::vector<uint32_t> tokens_of(int64_t count, uint64_t seed) {
  std::vector<uint32_t> tokens;
  for (int64_t n = 0; n < count; ++n)
    tokens.push_back(static_cast<uint32_t>(mix64(seed * 1000 + static_cast<uint64_t>(n)) % 61));
  return tokens;
}

/// Some sequences of different lengths, none of them empty but one.
struct Batch {
  std::vector<uint32_t> tokens;
  std::vector<int64_t> starts{0};
  TokenBatch view() const { return {tokens, starts}; }
  std::vector<uint32_t> sequence(size_t b) const {
    return {tokens.begin() + starts[b], tokens.begin() + starts[b + 1]};
  }
  size_t sequences() const { return starts.size() - 1; }
};
Batch batch_of(const std::vector<int64_t>& lengths, uint64_t seed) {
  Batch batch;
  for (const int64_t length : lengths) {
    const std::vector<uint32_t> tokens = tokens_of(length, seed++);
    batch.tokens.insert(batch.tokens.end(), tokens.begin(), tokens.end());
    batch.starts.push_back(static_cast<int64_t>(batch.tokens.size()));
  }
  return batch;
}

/// Rows [first, first + count) of f32 or bf16 rows, as bytes.
std::string bytes(const Tensor& rows, int64_t first, int64_t count) {
  const int64_t width = rows.shape()[1] * size_of(rows.dtype());
  return {static_cast<const char*>(rows.view().data()) + first * width, static_cast<size_t>(count * width)};
}

class Encoder : public ::testing::TestWithParam<Case> {};

TEST_P(Encoder, RowsDependOnTheirSequenceAlone) {
  const Transformer model =
      Transformer::random(GetParam().model.config(), 3, {.dtype = GetParam().dtype, .threads = 2});
  const Transformer one_thread =
      Transformer::random(GetParam().model.config(), 3, {.dtype = GetParam().dtype, .threads = 1});
  const Batch batch = batch_of({9, 1, 0, 33}, 5);
  const Tensor all = model.logits(batch.view());
  ASSERT_EQ(all.shape(), (Dims{43, 61}));
  for (size_t b = 0; b < batch.sequences(); ++b) {
    const int64_t first = batch.starts[b], count = batch.starts[b + 1] - first;
    const std::vector<uint32_t> tokens = batch.sequence(b);
    EXPECT_EQ(bytes(one_thread.logits({tokens}), 0, count), bytes(all, first, count)) << "sequence " << b;
  }
}

TEST_P(Encoder, HasNoStateAndRefusesWhatDoesNotFit) {
  const Transformer model = Transformer::random(GetParam().model.config(), 3, {.dtype = GetParam().dtype});
  EXPECT_THROW(model.start(1), Error);
  EXPECT_THROW(model.hidden({tokens_of(41, 1)}), Error);
  const std::vector<uint32_t> outside{3, 61};
  EXPECT_THROW(model.hidden({outside}), Error);
}

INSTANTIATE_TEST_SUITE_P(All, Encoder, ::testing::ValuesIn(cases(false)), case_name);

/// A decoder, or an encoder-decoder with its memory.
class Decoder : public ::testing::TestWithParam<Case> {
 protected:
  Decoder()
      : model_(Transformer::random(GetParam().model.config(), 4, {.dtype = GetParam().dtype, .threads = 2})),
        memory_(batch_of({5, 11, 1}, 40)),
        batch_(batch_of({14, 37, 3}, 50)) {}
  bool has_memory() const { return model_.config().kind == ModelKind::encoder_decoder; }
  Tensor full() const {
    return has_memory() ? model_.logits(memory_.view(), batch_.view()) : model_.logits(batch_.view());
  }
  DecoderState start() const { return has_memory() ? model_.start(memory_.view()) : model_.start(3); }
  /// A state for sequence b alone.
  DecoderState start_alone(size_t b) const {
    return has_memory() ? model_.start({memory_.sequence(b)}) : model_.start(1);
  }

  Transformer model_;
  Batch memory_, batch_;
};

TEST_P(Decoder, OneTokenAtATimeGivesTheBitsOfTheFullPass) {
  const Tensor all = full();
  for (size_t b = 0; b < 3; ++b) {
    DecoderState state = start_alone(b);
    for (int64_t n = batch_.starts[b]; n < batch_.starts[b + 1]; ++n) {
      const Tensor row = model_.decode(state, {{&batch_.tokens[static_cast<size_t>(n)], 1}});
      EXPECT_EQ(bytes(row, 0, 1), bytes(all, n, 1)) << "sequence " << b << " row " << n;
    }
    EXPECT_EQ(state.length(0), batch_.starts[b + 1] - batch_.starts[b]);
  }
}

TEST_P(Decoder, RaggedChunksGiveTheBitsOfTheFullPass) {
  const Tensor all = full();
  DecoderState state = start();
  std::vector<int64_t> seen(3, 0);
  uint64_t step = 0;
  while (state.length(0) < 14 || state.length(1) < 37 || state.length(2) < 3) {
    Batch chunk;
    std::vector<int64_t> first = seen;
    for (size_t b = 0; b < 3; ++b) {
      const int64_t left = batch_.starts[b + 1] - batch_.starts[b] - seen[b];
      const int64_t count = std::min<int64_t>(left, static_cast<int64_t>(mix64(step * 3 + b) % 6));
      const auto from = batch_.tokens.begin() + batch_.starts[b] + seen[b];
      chunk.tokens.insert(chunk.tokens.end(), from, from + count);
      chunk.starts.push_back(static_cast<int64_t>(chunk.tokens.size()));
      seen[b] += count;
    }
    ++step;
    const Tensor rows = model_.decode(state, chunk.view(), LogitRows::all);
    for (size_t b = 0; b < 3; ++b) {
      const int64_t count = chunk.starts[b + 1] - chunk.starts[b];
      EXPECT_EQ(bytes(rows, chunk.starts[b], count), bytes(all, batch_.starts[b] + first[b], count)) << "step " << step;
    }
  }
}

TEST_P(Decoder, LastRowsAreThoseOfSequencesWithNewTokens) {
  DecoderState all_rows = start(), last_rows = start();
  const Batch chunk = batch_of({2, 0, 3}, 9);
  const Tensor all = model_.decode(all_rows, chunk.view(), LogitRows::all);
  const Tensor last = model_.decode(last_rows, chunk.view());
  ASSERT_EQ(last.shape()[0], 2);
  EXPECT_EQ(bytes(last, 0, 1), bytes(all, 1, 1));
  EXPECT_EQ(bytes(last, 1, 1), bytes(all, 4, 1));
}

TEST_P(Decoder, TruncateReorderAndSharedPrefixes) {
  const Tensor all = full();
  DecoderState state = start();
  model_.decode(state, batch_.view());
  state.truncate(1, 20);
  state.reorder({1, 1, 0});
  EXPECT_EQ(state.length(0), 20);
  EXPECT_EQ(state.length(2), 14);
  state.share_prefix(0, 2, 12);
  EXPECT_EQ(state.length(2), 12);
  Batch chunk;  // all three go on with what followed in sequence 1
  const auto text = batch_.sequence(1);
  for (const int64_t from : {20, 20, 12}) {
    chunk.tokens.insert(chunk.tokens.end(), text.begin() + from, text.begin() + from + 4);
    chunk.starts.push_back(static_cast<int64_t>(chunk.tokens.size()));
  }
  const Tensor rows = model_.decode(state, chunk.view(), LogitRows::all);
  const int64_t first = batch_.starts[1];
  EXPECT_EQ(bytes(rows, 0, 4), bytes(all, first + 20, 4));
  EXPECT_EQ(bytes(rows, 4, 4), bytes(all, first + 20, 4));
  EXPECT_EQ(bytes(rows, 8, 4), bytes(all, first + 12, 4));
  EXPECT_GT(state.bytes(), 0);
}

TEST_P(Decoder, LongSequencesCrossKeyBlocks) {
  // Longer than a block of keys, so that several meet; within every position table.
  const std::vector<uint32_t> tokens = tokens_of(280, 70);
  const std::vector<uint32_t> memory = tokens_of(3, 8);
  const Tensor all = has_memory() ? model_.logits({memory}, {tokens}) : model_.logits({tokens});
  DecoderState state = has_memory() ? model_.start(TokenBatch{memory}) : model_.start(1);
  const std::span<const uint32_t> whole(tokens);
  model_.decode(state, {whole.first(277)});
  for (size_t n = 277; n < 280; ++n) {
    EXPECT_EQ(bytes(model_.decode(state, {whole.subspan(n, 1)}), 0, 1), bytes(all, static_cast<int64_t>(n), 1));
  }
}

TEST_P(Decoder, RefusesWhatDoesNotFit) {
  DecoderState state = start();
  const std::vector<uint32_t> tokens{1, 2, 61};
  const std::vector<int64_t> starts{0, 1, 2, 3}, falling{0, 2, 1, 3}, two{0, 1, 3};
  EXPECT_THROW(model_.decode(state, {tokens, starts}), Error);
  EXPECT_THROW(model_.decode(state, {std::span(tokens).first(2), starts}), Error);
  EXPECT_THROW(model_.decode(state, {tokens, falling}), Error);
  EXPECT_THROW(model_.decode(state, {tokens, two}), Error);
  EXPECT_EQ(state.length(0), 0);
  EXPECT_THROW(model_.start(-1), Error);
  EXPECT_THROW(has_memory() ? model_.start(1) : model_.start(memory_.view()), Error);
}

INSTANTIATE_TEST_SUITE_P(All, Decoder, ::testing::ValuesIn(cases(true)), case_name);

TEST(Transformer, AStepThatFailsHalfwayLeavesTheStateAsItWas) {
  const Transformer model = Transformer::random(tiny_model("llama").config(), 1);
  DecoderState state = model.start(2);
  const std::vector<uint32_t> tokens = tokens_of(7, 1);
  const std::vector<int64_t> starts{0, 3, 7};
  model.decode(state, {tokens, starts});
  // The last layer's cache holds as many keys, but refuses new ones.
  std::vector<KeyValueCache>& caches = state.storage().self;
  KeyValueCache kept = std::move(caches.back());
  caches.back() = KeyValueCache(2, 1, 3, 3, DType::f32);
  const Tensor keys(DType::f32, {1, 4, 3});
  for (int64_t b = 0; b < 2; ++b) {
    const TensorView rows(DType::f32, keys.view().data(), {1, kept.length(b), 3});
    caches.back().append(b, rows, rows);
  }
  EXPECT_THROW(model.decode(state, {tokens, starts}), Error);
  caches.back() = std::move(kept);
  for (const KeyValueCache& cache : caches) {
    EXPECT_EQ(cache.length(0), 3);
    EXPECT_EQ(cache.length(1), 4);
  }
  DecoderState other = model.start(2);
  model.decode(other, {tokens, starts});
  EXPECT_EQ(bytes(model.decode(state, {tokens, starts}), 0, 2), bytes(model.decode(other, {tokens, starts}), 0, 2));
}

TEST(Transformer, StopsAtTheEndOfALearnedPositionTable) {
  const Transformer model = Transformer::random(tiny_model("gpt2").config(), 1);
  DecoderState state = model.start(1);
  model.decode(state, {tokens_of(300, 1)});
  const std::vector<uint32_t> one{5};
  EXPECT_THROW(model.decode(state, {one}), Error);
  EXPECT_EQ(state.length(0), 300);
}

}  // namespace
}  // namespace qkv::test

// SPDX-License-Identifier: Apache-2.0
#include "verify.h"

#include "qkv/attention/accuracy.h"
#include "qkv/support/error.h"
#include "sample.h"

namespace qkv::bench {
namespace {

// Operations of a sample. The rule evaluates the definition three times, at about 1e9 operations a second in scalar
// f64.
constexpr double kForwardBudget = 2.5e8;
constexpr double kBackwardBudget = 1e8;

/// A part of a result, row-major as the rule wants it; absent when the result is.
Tensor taken(const TensorView& view) { return view ? converted(view, view.dtype()) : Tensor(); }

void verify_forward(Inputs& inputs, const std::vector<int>& threads, const std::vector<Chunk>& chunks,
                    Verdict& verdict) {
  require_same_bits(verdict, {&inputs.out.storage, &inputs.lse.storage}, threads, [&](int count) {
    AttentionOptions options = inputs.options;
    options.threads = count;
    run_forward(inputs, options);
  });
  Comparisons comparisons;
  for (const Chunk& chunk : chunks) {
    const Part part(inputs, chunk);
    AttentionReference ours;
    ours.out = taken(queries_of(inputs, chunk, inputs.out.view));
    ours.lse = taken(queries_of(inputs, chunk, inputs.lse.view));
    comparisons.add(attention_accuracy(part.q, part.k, part.v, part.options, ours));
  }
  comparisons.judge(verdict, verdict.forward);
}

/// An upstream gradient that is zero outside of a chunk.
Placed sampled_upstream(const Inputs& inputs, const Chunk& chunk) {
  Placed placed;
  placed.storage = Tensor(inputs.d_out.storage.dtype(), inputs.d_out.storage.shape());
  const MutableTensorView& like = inputs.d_out.view;
  placed.view = MutableTensorView(like.dtype(), placed.storage.mutable_view().data(), like.shape(), like.strides());
  copy(queries_of(inputs, chunk, like), queries_of(inputs, chunk, placed.view));
  return placed;
}

void verify_backward(Inputs& inputs, const std::vector<int>& threads, const std::vector<Chunk>& chunks,
                     Verdict& verdict) {
  AttentionOptions options = inputs.options;
  options.threads = threads.front();
  const AttentionState state = attention_forward(inputs.q.view, inputs.k.view, inputs.v.view, options, inputs.out.view);
  const auto call = [&](int count, const TensorView& d_out) {
    options.threads = count;
    attention_backward(inputs.q.view, inputs.k.view, inputs.v.view, options, state, d_out, inputs.gradients);
  };
  require_same_bits(verdict,
                    {&inputs.d_q.storage, &inputs.d_k.storage, &inputs.d_v.storage, &inputs.d_bias, &inputs.d_slopes,
                     &inputs.d_table, &inputs.d_sinks, &inputs.d_scale},
                    threads, [&](int count) { call(count, inputs.d_out.view); });
  const AttentionGradients& all = inputs.gradients;
  Comparisons comparisons;
  for (const Chunk& chunk : chunks) {
    call(threads.front(), sampled_upstream(inputs, chunk).view);
    const Part part(inputs, chunk);
    AttentionReference ours;
    ours.d_q = taken(queries_of(inputs, chunk, all.q));
    ours.d_k = taken(keys_of(inputs, chunk, all.k));
    ours.d_v = taken(keys_of(inputs, chunk, all.v));
    if (all.bias) ours.d_bias = taken(bias_of(chunk, all.bias));
    ours.d_slopes = taken(all.slopes);
    ours.d_table = taken(all.table);
    ours.d_sinks = taken(all.sinks);
    ours.d_scale = taken(all.scale);
    comparisons.add(attention_accuracy(part.q, part.k, part.v, part.options, ours, part.d_out));
  }
  comparisons.judge(verdict, verdict.backward);
}

void verify_jvp(Inputs& inputs, const std::vector<int>& threads, const std::vector<Chunk>& chunks, Verdict& verdict) {
  AttentionOptions options = inputs.options;
  options.threads = threads.front();
  const AttentionState state = attention_forward(inputs.q.view, inputs.k.view, inputs.v.view, options, inputs.out.view);
  require_same_bits(verdict, {&inputs.t_out.storage}, threads, [&](int count) {
    options.threads = count;
    run_jvp(inputs, options, state);
  });
  Comparisons comparisons;
  for (const Chunk& chunk : chunks) {
    const Part part(inputs, chunk);
    const AttentionTangents tangents{.q = queries_of(inputs, chunk, inputs.t_q.view),
                                     .k = keys_of(inputs, chunk, inputs.t_k.view),
                                     .v = keys_of(inputs, chunk, inputs.t_v.view)};
    comparisons.add(attention_jvp_accuracy(part.q, part.k, part.v, part.options, tangents,
                                           {taken(queries_of(inputs, chunk, inputs.t_out.view)), {}}));
  }
  comparisons.judge(verdict, verdict.backward);
}

void verify_second(Inputs& inputs, const std::vector<int>& threads, const std::vector<Chunk>& chunks,
                   Verdict& verdict) {
  AttentionOptions options = inputs.options;
  options.threads = threads.front();
  const AttentionState state = attention_forward(inputs.q.view, inputs.k.view, inputs.v.view, options, inputs.out.view);
  const auto call = [&](int count, const TensorView& d_out) {
    options.threads = count;
    run_second(inputs, options, state, d_out);
  };
  require_same_bits(
      verdict, {&inputs.d_q.storage, &inputs.d_k.storage, &inputs.d_v.storage, &inputs.t_out.storage, &inputs.d_bias},
      threads, [&](int count) { call(count, inputs.d_out.view); });
  Comparisons comparisons;
  for (const Chunk& chunk : chunks) {
    call(threads.front(), sampled_upstream(inputs, chunk).view);
    const Part part(inputs, chunk);
    AttentionSecondReference ours{.g_q = taken(queries_of(inputs, chunk, inputs.d_q.view)),
                                  .g_k = taken(keys_of(inputs, chunk, inputs.d_k.view)),
                                  .g_v = taken(keys_of(inputs, chunk, inputs.d_v.view)),
                                  .g_bias = {},
                                  .g_d_out = taken(queries_of(inputs, chunk, inputs.t_out.view))};
    if (inputs.gradients.bias) ours.g_bias = taken(bias_of(chunk, inputs.gradients.bias));
    const AttentionCotangents cotangents{.q = queries_of(inputs, chunk, inputs.t_q.view),
                                         .k = keys_of(inputs, chunk, inputs.t_k.view),
                                         .v = keys_of(inputs, chunk, inputs.t_v.view)};
    comparisons.add(
        attention_second_order_accuracy(part.q, part.k, part.v, part.options, part.d_out, cotangents, ours));
  }
  comparisons.judge(verdict, verdict.backward);
}

std::string describe(const Inputs& inputs, const std::vector<Chunk>& chunks) {
  if (covers_everything(inputs, chunks)) return "all rows";
  int64_t rows = 0;
  for (const Chunk& chunk : chunks) rows += chunk.entries * chunk.rows;
  return concat(rows, " queries of every head");
}

}  // namespace

void run_forward(Inputs& inputs, const AttentionOptions& options) {
  if (inputs.cache) {
    attention_forward(inputs.q.view, *inputs.cache, options, inputs.out.view, inputs.lse.view);
  } else {
    attention_forward(inputs.q.view, inputs.k.view, inputs.v.view, options, inputs.out.view, inputs.lse.view);
  }
}

void run_jvp(Inputs& inputs, const AttentionOptions& options, const AttentionState& state) {
  attention_jvp(inputs.q.view, inputs.k.view, inputs.v.view, options, state,
                {.q = inputs.t_q.view, .k = inputs.t_k.view, .v = inputs.t_v.view}, inputs.t_out.view, {});
}

void run_second(Inputs& inputs, const AttentionOptions& options, const AttentionState& state, const TensorView& d_out) {
  attention_second_order(inputs.q.view, inputs.k.view, inputs.v.view, options, state, d_out,
                         {.q = inputs.t_q.view, .k = inputs.t_k.view, .v = inputs.t_v.view},
                         {.q = inputs.d_q.view,
                          .k = inputs.d_k.view,
                          .v = inputs.d_v.view,
                          .bias = inputs.gradients.bias,
                          .d_out = inputs.t_out.view});
}

Verdict verify(Inputs& inputs, const Work& work, const std::vector<int>& threads) {
  Verdict verdict;
  verdict.checked = true;
  const std::vector<Chunk> forward_rows = sample(inputs, work, kForwardBudget * inputs.spec.check_share);
  verify_forward(inputs, threads, forward_rows, verdict);
  verdict.scope = "out, lse: " + describe(inputs, forward_rows);
  if (inputs.has_gradients()) {
    const std::vector<Chunk> backward_rows = sample(inputs, work, kBackwardBudget * inputs.spec.check_share);
    verify_backward(inputs, threads, backward_rows, verdict);
    if (inputs.spec.has_mode(Mode::jvp)) verify_jvp(inputs, threads, backward_rows, verdict);
    if (inputs.spec.has_mode(Mode::second)) verify_second(inputs, threads, backward_rows, verdict);
    verdict.scope += "; gradients: " + describe(inputs, backward_rows);
  }
  return verdict;
}

}  // namespace qkv::bench

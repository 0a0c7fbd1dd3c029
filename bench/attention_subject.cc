// SPDX-License-Identifier: Apache-2.0
#include "attention_subject.h"

#include "verify.h"
#include "work.h"

namespace qkv::bench {

AttentionSubject::AttentionSubject(const Case& which) : Subject(which), inputs_(which), work_(work_of(inputs_)) {}

Verdict AttentionSubject::verify(const std::vector<int>& threads) { return bench::verify(inputs_, work_, threads); }

std::function<void()> AttentionSubject::call(Mode mode, int threads) {
  AttentionOptions options = inputs_.options;
  options.threads = threads;
  Inputs* in = &inputs_;
  if (mode == Mode::forward) {
    return [in, options] { run_forward(*in, options); };
  }
  if (mode != Mode::both) {
    const auto state =
        std::make_shared<AttentionState>(attention_forward(in->q.view, in->k.view, in->v.view, options, in->out.view));
    if (mode == Mode::jvp) return [in, options, state] { run_jvp(*in, options, *state); };
    if (mode == Mode::second) return [in, options, state] { run_second(*in, options, *state, in->d_out.view); };
    return [in, options, state] {
      attention_backward(in->q.view, in->k.view, in->v.view, options, *state, in->d_out.view, in->gradients);
    };
  }
  return [in, options] {
    const AttentionState state = attention_forward(in->q.view, in->k.view, in->v.view, options, in->out.view);
    attention_backward(in->q.view, in->k.view, in->v.view, options, state, in->d_out.view, in->gradients);
  };
}

std::map<std::string, TensorView> AttentionSubject::tensors() {
  std::map<std::string, TensorView> tensors = {
      {"q", inputs_.q.view}, {"k", inputs_.k.view}, {"v", inputs_.v.view}, {"out", inputs_.out.view}};
  if (inputs_.bias) tensors["bias"] = inputs_.bias.view();
  if (inputs_.has_gradients()) {
    tensors["d_out"] = inputs_.d_out.view;
    tensors["d_q"] = inputs_.d_q.view;
  }
  return tensors;
}

}  // namespace qkv::bench

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "qkv/nn/stack.h"

namespace qkv {

// visit(parameters, name, f) calls f(name of the view, view) for every view of a struct of parameters or gradients,
// always in the same order: to zero gradients, to step an optimiser, to save. Absent views are visited too.

template <class View, class F>
void visit(LinearOf<View>& linear, const std::string& name, const F& f) {
  f(name + ".weight", linear.weight);
  f(name + ".bias", linear.bias);
}

template <class View, class F>
void visit(NormOf<View>& norm, const std::string& name, const F& f) {
  f(name + ".weight", norm.weight);
  f(name + ".bias", norm.bias);
}

template <class View, class F>
void visit(FeedForwardOf<View>& feed_forward, const std::string& name, const F& f) {
  visit(feed_forward.up, name + ".up", f);
  visit(feed_forward.gate, name + ".gate", f);
  visit(feed_forward.down, name + ".down", f);
}

template <class View, class F>
void visit(MultiHeadAttentionOf<View>& attention, const std::string& name, const F& f) {
  visit(attention.q, name + ".q", f);
  visit(attention.k, name + ".k", f);
  visit(attention.v, name + ".v", f);
  visit(attention.out, name + ".out", f);
  visit(attention.q_norm, name + ".q_norm", f);
  visit(attention.k_norm, name + ".k_norm", f);
  f(name + ".bias", attention.bias);
  f(name + ".slopes", attention.slopes);
  f(name + ".table", attention.table);
  f(name + ".sinks", attention.sinks);
}

template <class View, class F>
void visit(BlockOf<View>& block, const std::string& name, const F& f) {
  visit(block.attention_norm, name + ".attention_norm", f);
  visit(block.attention_after_norm, name + ".attention_after_norm", f);
  visit(block.attention, name + ".attention", f);
  visit(block.cross_norm, name + ".cross_norm", f);
  visit(block.cross_after_norm, name + ".cross_after_norm", f);
  visit(block.cross, name + ".cross", f);
  visit(block.feed_forward_norm, name + ".feed_forward_norm", f);
  visit(block.feed_forward_after_norm, name + ".feed_forward_after_norm", f);
  visit(block.feed_forward, name + ".feed_forward", f);
}

template <class View, class F>
void visit(StackOf<View>& stack, const std::string& name, const F& f) {
  for (size_t i = 0; i < stack.blocks.size(); ++i) visit(stack.blocks[i], name + "." + std::to_string(i), f);
  visit(stack.final_norm, name + ".final_norm", f);
}

}  // namespace qkv

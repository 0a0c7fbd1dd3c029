// SPDX-License-Identifier: Apache-2.0
//
// What a user of the library would write: the weights (1/6, 1/3, 1/2), their output and the gradient of the values.
#include <qkv/attention.h>
#include <qkv/version.h>

#include <cmath>
#include <cstdio>

int main() {
  const float q[] = {1};                                  // [1, 1]
  const float k[] = {0, std::log(2.0f), std::log(3.0f)};  // [3, 1]
  const float v[] = {2, 0, 0, 3, 4, 2};                   // [3, 2]
  const float d_out[] = {1, 0};                           // [1, 2]
  const float expected_out[] = {7.0f / 3, 2};             // [1, 2]
  const float expected_d_v[] = {1 / 6.0f, 0, 1 / 3.0f, 0, 0.5f, 0};
  float out[2], d_v[6];
  const qkv::TensorView keys(k, {3, 1}), values(v, {3, 2}), queries(q, {1, 1});

  qkv::AttentionOptions options{.causal = qkv::Causal::bottom_right(), .window = {255, 0}};
  const qkv::AttentionState state =
      qkv::attention_forward(queries, keys, values, options, qkv::MutableTensorView(out, {1, 2}));
  qkv::AttentionGradients gradients;
  gradients.v = qkv::MutableTensorView(d_v, {3, 2});
  qkv::attention_backward(queries, keys, values, options, state, qkv::TensorView(d_out, {1, 2}), gradients);

  // A handful of roundings of f32 each; and a narrowing that qkv's own warnings would refuse in qkv.
  double bound = 16 * 1.2e-7;
  float narrow = bound;
  bool right = true;
  for (int i = 0; i < 2; ++i) right = right && std::fabs(out[i] - expected_out[i]) <= narrow;
  for (int i = 0; i < 6; ++i) right = right && std::fabs(d_v[i] - expected_d_v[i]) <= narrow;
  std::printf("qkv %s: out (%g, %g)\n", qkv::version(), out[0], out[1]);
  return right ? 0 : 1;
}

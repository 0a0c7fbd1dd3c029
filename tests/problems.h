// SPDX-License-Identifier: Apache-2.0
//
// Random problems for tests: any shape, dtype, layout, set of options and conditioning, from one seed.
//
//   const TestProblem problem({.seed = 7, .H = 8, .Hkv = 2, .Tq = 65, .Tk = 127,
//                              .features = kBias | kCausalBottomRight});
//   attention_forward(problem.q, problem.k, problem.v, problem.options, out.view(), lse.view());
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "qkv/attention/attention.h"
#include "strided.h"

namespace qkv::test {

/// Options of a problem; any set of them makes sense but for those that `compatible` sorts out.
enum Feature : uint32_t {
  kScale = 1u << 0,
  kSoftcap = 1u << 1,
  kBias = 1u << 2,  ///< each axis full or 1, by the seed; a few elements are -inf
  kSlopes = 1u << 3,
  kTable = 1u << 4,  ///< either kind of buckets, by the seed
  kSinks = 1u << 5,
  kCausalTopLeft = 1u << 6,
  kCausalBottomRight = 1u << 7,
  kCausalOffset = 1u << 8,
  kCausalOffsets = 1u << 9,
  kOffset = 1u << 10,   ///< a position of query 0 without causal
  kOffsets = 1u << 11,  ///< the same per batch entry
  kWindow = 1u << 12,   ///< both sides, or one missing, by the seed
  kKeyLengths = 1u << 13,
  kQueryLengths = 1u << 14,
  kMask = 1u << 15,  ///< bool or u8, each axis full or 1
  kSegments = 1u << 16,
  kBlockMask = 1u << 17,
  kPacked = 1u << 18,  ///< B sequences of random lengths that fill Tq and Tk rows in all
  kDropout = 1u << 19,
  kDLse = 1u << 20,
};
inline constexpr uint32_t kAllFeatures = (1u << 21) - 1;
const char* name(Feature feature);

/// Distributions that make a formula lose digits.
enum class Values : uint8_t {
  normal,        ///< standard normal
  large_scores,  ///< scores of some hundreds: rows are almost one-hot
  nearly_equal,  ///< keys and values almost the same everywhere: gradients cancel
  offset_keys,   ///< a large vector common to all keys: the softmax cancels it
  tiny,          ///< q, k, v and d_out near the small end of the dtype (of f32's for f64)
  huge,          ///< near the large end, without overflow in f32
};
const char* name(Values values);

struct Spec {
  uint64_t seed = 1;
  DType dtype = DType::f32;
  int rank = 4;  ///< 3 and 2 drop the batch, then the heads (B, H, Hkv must be 1)
  int64_t B = 1, H = 2, Hkv = 2;
  int64_t Tq = 5, Tk = 7;  ///< totals when packed
  int64_t D = 8, Dv = 8;
  uint32_t features = 0;
  Layout layout = Layout::contiguous;
  Values values = Values::normal;
  int threads = 1;
};

/// "f16_causal_bottom_right_bias_gqa4_b2_tq65_tk127_d64", what is usual left out.
std::string name(const Spec& spec);

/// The spec with features that exclude one another dropped (the later ones of the list stay out).
Spec compatible(Spec spec);
/// Every feature alone, and none, for the given spec.
std::vector<Spec> each_feature_alone(const Spec& base);
/// A spec drawn from the seed: sizes around lanes and blocks (0 and 1 included), a few features or many, every layout,
/// dtype and distribution. At most about `largest` rows and keys.
Spec random_spec(uint64_t seed, int64_t largest = 130);

/// A problem that owns its memory. Not copyable: options hold views of it.
class TestProblem {
 public:
  explicit TestProblem(const Spec& spec);
  TestProblem(const TestProblem&) = delete;
  TestProblem& operator=(const TestProblem&) = delete;

  Spec spec;
  TensorView q, k, v;
  AttentionOptions options;
  TensorView d_out;
  TensorView d_lse;  ///< absent without kDLse

  Dims out_shape() const { return d_out.shape(); }
  Dims lse_shape() const;
  DType lse_dtype() const { return spec.dtype == DType::f64 ? DType::f64 : DType::f32; }

  /// Stores NaN in every key, value and bias element that no query sees (through any head that reads it); returns how
  /// many keys and bias elements that were. Not for expanded layouts, whose entries share memory.
  int64_t poison_hidden();

 private:
  friend class Generator;
  std::deque<StridedTensor> memory_;
};

}  // namespace qkv::test

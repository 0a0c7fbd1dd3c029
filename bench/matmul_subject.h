// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "qkv/kernels/matmul.h"
#include "subject.h"

namespace qkv::bench {

/// C[M, N] = A[M, K] B[K, N], or a linear layer; backward gives the gradients of A and B.
class MatmulSubject : public Subject {
 public:
  explicit MatmulSubject(const Case& which);
  Work work() const override;
  /// On the first, middle and last rows of each product.
  Verdict verify(const std::vector<int>& threads) override;
  std::function<void()> call(Mode mode, int threads) override;
  std::map<std::string, TensorView> tensors() override;

 private:
  bool has_gradients() const { return static_cast<bool>(d_c_); }
  TensorView weights() const { return spec.columns ? transposed(b_.view()) : b_.view(); }

  Tensor a_, b_, c_;
  Tensor d_c_, d_a_, d_b_;  ///< absent unless some mode takes derivatives
  Tensor bias_, residual_;  ///< of a linear layer
  PackedMatrix prepared_;   ///< b_
  MatmulOptions options_;   ///< all but threads
};

}  // namespace qkv::bench

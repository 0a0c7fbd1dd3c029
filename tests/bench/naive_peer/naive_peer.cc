// SPDX-License-Identifier: Apache-2.0
// A peer of plain loops, so that the benchmark's side for libraries called from C++ is tested without one.
#include "peers/product_peer.h"
#include "qkv/support/error.h"

namespace qkv::bench {
namespace {

std::function<void()> bind(const ProductCall& product) {
  require(product.x.dtype() == DType::f32, "f32 only");
  return [p = product] {
    const auto at = [](const TensorView& matrix, int64_t i, int64_t j) {
      return *static_cast<const float*>(matrix.at(i * matrix.stride(0) + j * matrix.stride(1)));
    };
    for (int64_t i = 0; i < p.out.size(0); ++i) {
      for (int64_t j = 0; j < p.out.size(1); ++j) {
        float sum = 0;
        for (int64_t k = 0; k < p.x.size(1); ++k) sum += at(p.x, i, k) * at(p.y, k, j);
        *static_cast<float*>(p.out.at(i * p.out.stride(0) + j)) = sum;
      }
    }
  };
}

}  // namespace
}  // namespace qkv::bench

int main() {
  return qkv::bench::serve({.engine = "loops",
                            .version = "1",
                            .absent = "",
                            .how = "three loops",
                            .use_threads = [](int) {},
                            .bind = qkv::bench::bind});
}

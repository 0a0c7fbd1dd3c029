// SPDX-License-Identifier: Apache-2.0
// OpenBLAS, found when the program starts: building needs neither its headers nor the library.
#include <dlfcn.h>

#include "product_peer.h"
#include "qkv/support/error.h"

namespace qkv::bench {
namespace {

// Of cblas.h: row-major order, and an operand as it is or transposed.
constexpr int kRowMajor = 101, kAsItIs = 111, kTransposed = 112;

template <class T>
using Gemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, T alpha, const T* a, int lda,
                      const T* b, int ldb, T beta, T* c, int ldc);

template <class F>
F function(void* library, const char* name) {
  return reinterpret_cast<F>(dlsym(library, name));
}

bool is_transposed(const TensorView& matrix) { return matrix.stride(1) != 1; }
int leading(const TensorView& matrix) {
  return static_cast<int>(is_transposed(matrix) ? matrix.stride(1) : matrix.stride(0));
}

template <class T>
std::function<void()> bind_as(Gemm<T> gemm, const ProductCall& product) {
  require(gemm != nullptr, "no product of this type");
  return [gemm, p = product] {
    gemm(kRowMajor, is_transposed(p.x) ? kTransposed : kAsItIs, is_transposed(p.y) ? kTransposed : kAsItIs,
         static_cast<int>(p.x.size(0)), static_cast<int>(p.y.size(1)), static_cast<int>(p.x.size(1)), T(1),
         static_cast<const T*>(p.x.data()), leading(p.x), static_cast<const T*>(p.y.data()), leading(p.y), T(0),
         static_cast<T*>(p.out.data()), leading(p.out));
  };
}

ProductLibrary openblas() {
  ProductLibrary found;
  found.engine = "OpenBLAS";
  void* library = dlopen("libopenblas.so.0", RTLD_NOW);
  if (library == nullptr) {
    found.absent = "libopenblas.so.0 is not installed";
    return found;
  }
  const auto config = function<const char* (*)()>(library, "openblas_get_config");
  // "OpenBLAS 0.3.21 ..."
  const std::string words = config == nullptr ? "" : config();
  const size_t begin = words.find(' ') + 1;
  found.version = words.substr(begin, words.find(' ', begin) - begin);
  found.how = "gemm";
  found.use_threads = function<void (*)(int)>(library, "openblas_set_num_threads");
  found.bind = [sgemm = function<Gemm<float>>(library, "cblas_sgemm"),
                dgemm = function<Gemm<double>>(library, "cblas_dgemm")](const ProductCall& product) {
    if (product.x.dtype() == DType::f64) return bind_as(dgemm, product);
    require(product.x.dtype() == DType::f32, "no products in ", qkv::name(product.x.dtype()));
    return bind_as(sgemm, product);
  };
  return found;
}

}  // namespace
}  // namespace qkv::bench

int main() { return qkv::bench::serve(qkv::bench::openblas()); }

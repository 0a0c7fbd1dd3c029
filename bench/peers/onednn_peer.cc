// SPDX-License-Identifier: Apache-2.0
// oneDNN as the system has it, built only where its headers are.
#include <omp.h>

#include <dnnl.hpp>

#include "product_peer.h"
#include "qkv/support/error.h"

namespace qkv::bench {
namespace {

using Memory = dnnl::memory;

Memory::data_type type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return Memory::data_type::f32;
    case DType::bf16: return Memory::data_type::bf16;
    case DType::f16: return Memory::data_type::f16;
    default: fail("no products in ", qkv::name(dtype));
  }
}

Memory::desc described(const TensorView& matrix) {
  return {{matrix.size(0), matrix.size(1)}, type_of(matrix.dtype()), {matrix.stride(0), matrix.stride(1)}};
}

Memory over(const Memory::desc& desc, const dnnl::engine& engine, const TensorView& matrix) {
  return {desc, engine, const_cast<void*>(matrix.data())};
}

std::function<void()> bind(const ProductCall& product) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const Memory::desc plain = described(product.y);
  const Memory::desc any(plain.dims(), type_of(product.y.dtype()), Memory::format_tag::any);
  const dnnl::matmul::primitive_desc chosen(
      dnnl::matmul::desc(described(product.x), product.prepared ? any : plain, described(product.out)), engine);
  Memory weights = over(plain, engine, product.y);
  if (product.prepared && chosen.weights_desc() != plain) {
    Memory packed(chosen.weights_desc(), engine);
    dnnl::reorder(weights, packed).execute(stream, weights, packed);
    stream.wait();
    weights = packed;
  }
  const std::unordered_map<int, Memory> arguments = {{DNNL_ARG_SRC, over(described(product.x), engine, product.x)},
                                                     {DNNL_ARG_WEIGHTS, weights},
                                                     {DNNL_ARG_DST, over(described(product.out), engine, product.out)}};
  return [multiply = dnnl::matmul(chosen), arguments, stream]() mutable {
    multiply.execute(stream, arguments);
    stream.wait();
  };
}

ProductLibrary onednn() {
  const dnnl_version_t* version = dnnl::version();
  return {.engine = "oneDNN",
          .version = concat(version->major, '.', version->minor, '.', version->patch),
          .absent = "",
          .how = "matmul",
          .use_threads = [](int threads) { omp_set_num_threads(threads); },
          .bind = bind};
}

}  // namespace
}  // namespace qkv::bench

int main() { return qkv::bench::serve(qkv::bench::onednn()); }

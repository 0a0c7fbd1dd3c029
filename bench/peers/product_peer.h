// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "qkv/tensor/tensor.h"

namespace qkv::bench {

/// out = x y, [M, K] [K, N]; x and y are row-major or, by their strides, the transposed of such.
struct ProductCall {
  TensorView x, y;
  MutableTensorView out;
  bool prepared = false;  ///< y may be brought into any form beforehand
};

/// A library of matrix products as a peer.
struct ProductLibrary {
  std::string engine, version;
  std::string absent;  ///< why there is none; empty when there is
  std::string how;
  std::function<void(int threads)> use_threads;
  /// The call, with what it needs prepared; throws std::exception when the library cannot do it.
  std::function<std::function<void()>(const ProductCall& product)> bind;
};

/// Answers the requests of bench/peer.h on standard input until it ends. Returns the exit code.
int serve(const ProductLibrary& library);

}  // namespace qkv::bench

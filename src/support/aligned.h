// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "qkv/support/checked.h"
#include "qkv/support/error.h"

namespace qkv {

/// Scratch memory: zeroed, 64-byte aligned. Throws SystemError when there is none.
template <class T>
class AlignedArray {
 public:
  AlignedArray() = default;
  explicit AlignedArray(int64_t count) {
    if (count == 0) return;
    const int64_t bytes = round_up(checked_multiply(count, static_cast<int64_t>(sizeof(T)), "scratch"), kAlignment);
    data_.reset(static_cast<T*>(std::aligned_alloc(kAlignment, static_cast<size_t>(bytes))));
    if (!data_) throw SystemError(concat("memory: ", bytes, " bytes of scratch are not to be had"));
    std::memset(static_cast<void*>(data_.get()), 0, static_cast<size_t>(bytes));
  }
  T* get() const { return data_.get(); }
  T& operator[](int64_t i) const { return data_.get()[i]; }

 private:
  static constexpr int64_t kAlignment = 64;
  struct Free {
    void operator()(T* memory) const { std::free(memory); }
  };
  std::unique_ptr<T, Free> data_;
};

}  // namespace qkv

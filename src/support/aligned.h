// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "qkv/support/checked.h"
#include "qkv/support/error.h"
#include "support/huge_pages.h"

namespace qkv {

/// Asks for scratch whose bytes are whatever they were.
struct Uninitialised {};
inline constexpr Uninitialised kUninitialised;

/// Scratch memory: zeroed unless asked otherwise, 64-byte aligned, large ones on huge pages. Throws MemoryError when
/// there is none.
template <class T>
class AlignedArray {
 public:
  AlignedArray() = default;
  explicit AlignedArray(int64_t count) : AlignedArray(count, kUninitialised) {
    if (count != 0) std::memset(static_cast<void*>(data_.get()), 0, static_cast<size_t>(count) * sizeof(T));
  }
  AlignedArray(int64_t count, Uninitialised) {
    if (count == 0) return;
    const int64_t bytes = round_up(checked_multiply(count, static_cast<int64_t>(sizeof(T)), "scratch"), kAlignment);
    const int64_t alignment = bytes < kHugePage ? kAlignment : kHugePage;
    // Not aligned_alloc: it cuts what it finds to pieces each time, malloc has what was freed last at hand.
    void* memory = std::malloc(static_cast<size_t>(checked_add(bytes, alignment, "scratch")));
    if (memory == nullptr) throw MemoryError(concat("memory: ", bytes, " bytes of scratch are not to be had"));
    const uintptr_t mask = static_cast<uintptr_t>(alignment) - 1;
    void* aligned = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory) + mask + 1) & ~mask);
    static_cast<void**>(aligned)[-1] = memory;  // malloc's own alignment leaves room for it
    data_.reset(static_cast<T*>(aligned));
    prefer_huge_pages(data_.get(), bytes);
  }
  T* get() const { return data_.get(); }
  T& operator[](int64_t i) const { return data_.get()[i]; }

 private:
  static constexpr int64_t kAlignment = 64;
  struct Free {
    void operator()(T* memory) const { std::free(reinterpret_cast<void**>(memory)[-1]); }
  };
  std::unique_ptr<T, Free> data_;
};

}  // namespace qkv

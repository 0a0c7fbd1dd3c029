// SPDX-License-Identifier: Apache-2.0
#include "qkv/tensor/view.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "qkv/support/error.h"
#include "qkv/tensor/tensor.h"

namespace qkv {
namespace {

template <class F>
std::string message_of(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(DimsTest, HoldsUpToFive) {
  const Dims dims{2, 3, 4};
  EXPECT_EQ(dims.rank(), 3);
  EXPECT_EQ(to_string(dims), "[2, 3, 4]");
  EXPECT_EQ(to_string(Dims{}), "[]");
  EXPECT_TRUE((Dims{2, 3} == Dims{2, 3}));
  EXPECT_FALSE((Dims{2, 3} == Dims{2, 3, 1}));
  EXPECT_TRUE(Dims::filled(2, 7) == (Dims{7, 7}));
  EXPECT_EQ(message_of([] { Dims{1, 2, 3, 4, 5, 6}; }), "a tensor has more than 5 dimensions, the most that qkv holds");
}

TEST(DimsTest, CountsElementsOrSaysWhyNot) {
  EXPECT_EQ(element_count(Dims{}), 1);
  EXPECT_EQ(element_count(Dims{2, 3, 4}), 24);
  EXPECT_EQ(element_count(Dims{int64_t{1} << 40, int64_t{1} << 22}), int64_t{1} << 62);
  EXPECT_EQ(element_count(Dims{int64_t{1} << 40, int64_t{1} << 40, 0}), 0);
  EXPECT_EQ(message_of([] {
              element_count(Dims{int64_t{1} << 40, int64_t{1} << 23});
            }),
            "the number of elements of a shape of [1099511627776, 8388608] does not fit 64 bits");
  EXPECT_EQ(message_of([] { element_count(Dims{0, -1}); }), "a shape of [0, -1] has a negative size");
}

TEST(DimsTest, RowMajorStrides) {
  EXPECT_TRUE(contiguous_strides(Dims{2, 3, 4}) == (Dims{12, 4, 1}));
  EXPECT_TRUE(contiguous_strides(Dims{}) == Dims{});
  EXPECT_TRUE(contiguous_strides(Dims{5, 1, 2}) == (Dims{2, 2, 1}));
}

TEST(TensorViewTest, KnowsItsElements) {
  const float data[24] = {};
  EXPECT_FALSE(TensorView{});
  const TensorView view(data, Dims{2, 3, 4});
  EXPECT_TRUE(view);
  EXPECT_TRUE(view.is_contiguous());
  EXPECT_EQ(view.elements(), 24);
  EXPECT_EQ(view.at(5), data + 5);
  EXPECT_EQ(TensorView(data + 5, Dims{2}).at(-2), data + 3);
  EXPECT_FALSE(TensorView(data, Dims{3, 2}, Dims{1, 3}).is_contiguous());
  EXPECT_FALSE(TensorView(data, Dims{3}, Dims{-1}).is_contiguous());
  EXPECT_TRUE(TensorView(data, Dims{1, 3}, Dims{-77, 1}).is_contiguous());  // one row: its stride reaches nothing
  EXPECT_TRUE(TensorView(data, Dims{0, 3}, Dims{9, 9}).is_contiguous());
  EXPECT_EQ(message_of([&] {
              TensorView(data, Dims{2, 3}, Dims{1});
            }),
            "a view of shape [2, 3] has strides [1]: one stride per axis is expected");
}

/// All element offsets of a shape under given strides, in index order.
std::vector<int64_t> offsets(const Dims& shape, const Dims& strides) {
  std::vector<int64_t> result;
  const int64_t count = element_count(shape);
  for (int64_t index = 0; index < count; ++index) {
    int64_t rest = index, offset = 0;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      offset += rest % shape[axis] * strides[axis];
      rest /= shape[axis];
    }
    result.push_back(offset);
  }
  return result;
}

constexpr DType kAll[] = {DType::f64,     DType::f32, DType::bf16, DType::f16,
                          DType::boolean, DType::u8,  DType::i32,  DType::i64};
constexpr DType kFloating[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

struct StrideForm {
  const char* name;
  Dims shape;
  Dims strides;
  int64_t origin;  ///< of element 0 in the buffer
};

const StrideForm kForms[] = {
    {"scalar", {}, {}, 3},
    {"contiguous", {2, 3, 4}, {12, 4, 1}, 0},
    {"rows apart", {2, 3, 4}, {40, 9, 1}, 0},
    {"token-major", {2, 3, 5, 4}, {60, 4, 12, 1}, 0},
    {"transposed", {3, 4}, {1, 3}, 0},
    {"reversed", {3, 4}, {-4, -1}, 11},
    {"inner reversed", {3, 4}, {4, -1}, 3},
    {"every third", {7}, {3}, 1},
    {"five axes", {2, 1, 3, 2, 2}, {1, 99, 10, -30, 2}, 40},
    {"empty", {2, 0, 4}, {4, 4, 1}, 0},
};

TEST(CopyTest, AnyStridesToAnyStrides) {
  for (const DType dtype : kAll) {
    const size_t width = static_cast<size_t>(size_of(dtype));
    for (const StrideForm& from : kForms) {
      for (const StrideForm& to : kForms) {
        if (!(from.shape == to.shape)) continue;
        std::vector<unsigned char> source(128 * width), target(128 * width, 0xAB), expected(128 * width, 0xAB);
        for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<unsigned char>(i * 7 + 1);
        const std::vector<int64_t> in = offsets(from.shape, from.strides), out = offsets(to.shape, to.strides);
        for (size_t i = 0; i < in.size(); ++i) {
          std::memcpy(&expected[static_cast<size_t>(to.origin + out[i]) * width],
                      &source[static_cast<size_t>(from.origin + in[i]) * width], width);
        }
        copy(TensorView(dtype, &source[static_cast<size_t>(from.origin) * width], from.shape, from.strides),
             MutableTensorView(dtype, &target[static_cast<size_t>(to.origin) * width], to.shape, to.strides));
        EXPECT_EQ(target, expected) << name(dtype) << " " << from.name << " -> " << to.name;
      }
    }
  }
}

TEST(CopyTest, BetweenFormsOfOneShape) {
  const Dims shape{2, 3, 2};
  const Dims forms[] = {{6, 2, 1}, {1, 2, 6}, {12, 4, 2}, {0, 2, 1}, {2, 4, -1}};
  std::vector<float> source(64), target(64);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<float>(i);
  for (const Dims& from : forms) {
    for (const Dims& to : forms) {
      if (to[0] == 0) continue;  // a target may not name one element twice
      std::fill(target.begin(), target.end(), -1.0f);
      std::vector<float> expected = target;
      const std::vector<int64_t> in = offsets(shape, from), out = offsets(shape, to);
      for (size_t i = 0; i < in.size(); ++i)
        expected[static_cast<size_t>(8 + out[i])] = source[static_cast<size_t>(8 + in[i])];
      copy(TensorView(&source[8], shape, from), MutableTensorView(&target[8], shape, to));
      EXPECT_EQ(target, expected) << to_string(from) << " -> " << to_string(to);
    }
  }
}

TEST(CopyTest, ConvertsBetweenFloatingTypesByOneRounding) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal(0, 100);
  for (const DType from : kFloating) {
    for (const DType to : kFloating) {
      Tensor source(from, Dims{3, 7});
      for (int64_t i = 0; i < 21; ++i) store_from_double(from, source.mutable_view().at(i), normal(random));
      Tensor target(to, Dims{7, 3});
      copy(source.view(), MutableTensorView(to, target.mutable_view().data(), Dims{3, 7}, Dims{1, 3}));
      const Tensor straight = converted(source.view(), to);
      for (int64_t row = 0; row < 3; ++row) {
        for (int64_t column = 0; column < 7; ++column) {
          double expected = 0;
          store_from_double(to, &expected, load_as_double(from, source.view().at(row * 7 + column)));
          const double value = load_as_double(to, &expected);
          EXPECT_EQ(load_as_double(to, target.view().at(column * 3 + row)), value) << name(from) << name(to);
          EXPECT_EQ(load_as_double(to, straight.view().at(row * 7 + column)), value) << name(from) << name(to);
        }
      }
    }
  }
}

TEST(CopyTest, RefusesWhatDoesNotMatch) {
  Tensor f32(DType::f32, Dims{2, 3}), other(DType::f32, Dims{3, 2}), i32(DType::i32, Dims{2, 3});
  EXPECT_EQ(message_of([&] { copy(f32.view(), other.mutable_view()); }),
            "copy: the source has shape [2, 3], the target [3, 2]");
  EXPECT_EQ(message_of([&] { copy(i32.view(), f32.mutable_view()); }),
            "copy: i32 is not converted to f32, only floating types are converted");
}

TEST(FillZeroTest, TouchesItsElementsOnly) {
  for (const DType dtype : kAll) {
    const size_t width = static_cast<size_t>(size_of(dtype));
    for (const StrideForm& form : kForms) {
      std::vector<unsigned char> buffer(128 * width, 0xAB), expected = buffer;
      for (const int64_t offset : offsets(form.shape, form.strides)) {
        std::memset(&expected[static_cast<size_t>(form.origin + offset) * width], 0, width);
      }
      fill_zero(MutableTensorView(dtype, &buffer[static_cast<size_t>(form.origin) * width], form.shape, form.strides));
      EXPECT_EQ(buffer, expected) << name(dtype) << " " << form.name;
    }
  }
}

TEST(TensorTest, OwnsAlignedZeros) {
  for (const DType dtype : kAll) {
    Tensor tensor(dtype, Dims{3, 5});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.view().data()) % 64, 0u);
    for (int64_t i = 0; i < 15; ++i) EXPECT_EQ(load_as_double(dtype, tensor.view().at(i)), 0);
    EXPECT_EQ(tensor.mutable_view().data(), tensor.view().data());
  }
  EXPECT_TRUE(Tensor(DType::f32, Dims{0, 4}));
  Tensor any = Tensor::uninitialised(DType::bf16, Dims{3, 5});
  EXPECT_EQ(any.shape(), (Dims{3, 5}));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(any.mutable_view().data()) % 64, 0U);
  EXPECT_FALSE(Tensor{});
}

TEST(TensorTest, RefusesWhatCannotBe) {
  EXPECT_EQ(message_of([] { Tensor(DType::f64, Dims{int64_t{1} << 61}); }),
            "bytes of a tensor: 2305843009213693952 x 8 does not fit 64 bits");
  EXPECT_EQ(message_of([] { Tensor().mutable_view(); }), "an absent tensor has no view");
  const float foreign[2] = {1, 2};
  Tensor tensor(TensorView(foreign, Dims{2}), nullptr);
  EXPECT_EQ(tensor.view().data(), foreign);
  EXPECT_EQ(message_of([&] { tensor.mutable_view(); }), "a tensor over memory of somebody else is read-only");
}

TEST(TensorTest, KeepsForeignMemoryAlive) {
  auto owner = std::make_shared<std::vector<float>>(std::vector<float>{1, 2, 3});
  std::weak_ptr<std::vector<float>> watch = owner;
  Tensor copy_of_tensor;
  {
    Tensor tensor(TensorView(owner->data(), Dims{3}), owner);
    owner.reset();
    copy_of_tensor = tensor;
  }
  ASSERT_FALSE(watch.expired());
  EXPECT_EQ(load_as_double(DType::f32, copy_of_tensor.view().at(2)), 3);
  copy_of_tensor = Tensor();
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace qkv

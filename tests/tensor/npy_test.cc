// SPDX-License-Identifier: Apache-2.0
#include "qkv/tensor/npy.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tensor/files.h"

namespace qkv {
namespace {

using std::string_literals::operator""s;

/// A file of the given version around a header text, which gets its newline here.
std::string npy(const std::string& text, const std::string& data, int version = 1) {
  const std::string line = text + "\n";
  const std::string length =
      version == 1 ? bytes_of(static_cast<uint16_t>(line.size())) : bytes_of(static_cast<uint32_t>(line.size()));
  return "\x93NUMPY" + std::string{static_cast<char>(version), '\0'} + length + line + data;
}

std::string header(const std::string& descr, const std::string& shape, const std::string& fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }";
}

Tensor parse(const std::string& bytes) { return parse_npy(bytes.data(), bytes.size(), "x.npy"); }

std::vector<double> values(const Tensor& tensor) {
  const Tensor rows = [&] {
    Tensor result(tensor.dtype(), tensor.shape());
    copy(tensor.view(), result.mutable_view());
    return result;
  }();
  std::vector<double> result;
  for (int64_t i = 0; i < rows.view().elements(); ++i) {
    result.push_back(load_as_double(rows.dtype(), rows.view().at(i)));
  }
  return result;
}

using Values = std::vector<double>;

TEST(NpyTest, ReadsEveryVersion) {
  const std::string data = bytes_of(1.5f) + bytes_of(-2.0f);
  for (const int version : {1, 2, 3}) {
    const Tensor tensor = parse(npy(header("<f4", "(2,)"), data, version));
    EXPECT_EQ(tensor.dtype(), DType::f32);
    EXPECT_EQ(to_string(tensor.shape()), "[2]");
    EXPECT_EQ(values(tensor), (Values{1.5, -2}));
  }
}

TEST(NpyTest, ReadsEveryTypeInBothByteOrders) {
  const struct {
    const char* little;
    const char* big;
    DType dtype;
    std::string bytes;
    double value;
  } cases[] = {
      {"<f8", ">f8", DType::f64, bytes_of(0.1), 0.1},
      {"<f4", ">f4", DType::f32, bytes_of(0.5f), 0.5},
      {"<f2", ">f2", DType::f16, bytes_of(uint16_t{0xC100}), -2.5},
      {"<i8", ">i8", DType::i64, bytes_of(int64_t{-5000000000}), -5e9},
      {"<i4", ">i4", DType::i32, bytes_of(int32_t{-70000}), -70000},
      {"|u1", ">u1", DType::u8, bytes_of(uint8_t{200}), 200},
      {"|b1", "|b1", DType::boolean, bytes_of(uint8_t{1}), 1},
      {"=f4", "f4", DType::f32, bytes_of(0.5f), 0.5},
  };
  for (const auto& c : cases) {
    const Tensor little = parse(npy(header(c.little, "(1,)"), c.bytes));
    EXPECT_EQ(little.dtype(), c.dtype) << c.little;
    EXPECT_EQ(values(little), Values{c.value}) << c.little;
    const bool swapped = c.big[0] == '>';
    const std::string bytes = swapped ? std::string(c.bytes.rbegin(), c.bytes.rend()) : c.bytes;
    const Tensor big = parse(npy(header(c.big, "(1,)"), bytes));
    EXPECT_EQ(big.dtype(), c.dtype) << c.big;
    EXPECT_EQ(values(big), Values{c.value}) << c.big;
  }
}

TEST(NpyTest, ReadsHeadersAsPythonMayWriteThem) {
  const std::string data = bytes_of(7.0f);
  for (const char* text : {
           "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }",
           "{'shape': (1,), 'descr': '<f4', 'fortran_order': False}",
           "{\"fortran_order\":False,\"shape\":(1,),\"descr\":\"<f4\"}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (1L,), }      ",
           " {\n'descr' : '<f4' ,\t'fortran_order':True, 'shape' : ( 1 , ) }",
       }) {
    EXPECT_EQ(values(parse(npy(text, data))), Values{7}) << text;
  }
  EXPECT_EQ(to_string(parse(npy(header("<f4", "()"), data)).shape()), "[]");
  EXPECT_EQ(to_string(parse(npy(header("<f4", "(1, 1,)"), data)).shape()), "[1, 1]");
  EXPECT_EQ(to_string(parse(npy(header("<f4", "(0,)"), "")).shape()), "[0]");
  // NumPy multiplies sizes in an order of its own; an empty array is empty whatever the other sizes are.
  EXPECT_EQ(parse(npy(header("<f4", "(4611686018427387904, 8, 0)"), "")).view().elements(), 0);
}

TEST(NpyTest, FortranOrderBecomesStrides) {
  std::string data, swapped;
  for (int i = 0; i < 6; ++i) {
    const std::string bytes = bytes_of(static_cast<float>(i));
    data += bytes;
    swapped += std::string(bytes.rbegin(), bytes.rend());
  }
  for (const Tensor& tensor :
       {parse(npy(header("<f4", "(2, 3)", "True"), data)), parse(npy(header(">f4", "(2, 3)", "True"), swapped))}) {
    EXPECT_EQ(to_string(tensor.shape()), "[2, 3]");
    EXPECT_EQ(to_string(tensor.view().strides()), "[1, 2]");
    EXPECT_EQ(values(tensor), (Values{0, 2, 4, 1, 3, 5}));
  }
}

const std::string kFourBytes = "abcd";
const std::string kGoodFile = npy(header("<f4", "(1,)"), kFourBytes);

const struct {
  std::string bytes;
  const char* message;
} kWrongFiles[] = {
    {"", R"(x.npy: is not a .npy file: it starts with "", expected "\x93NUMPY")"},
    {"PK\x03\x04rest of a zip", R"(x.npy: is not a .npy file: it starts with "PK\x03\x04re", expected "\x93NUMPY")"},
    {kGoodFile.substr(0, 9), "x.npy: ends after 9 bytes, inside the header"},
    {"\x93NUMPY\x02\x00\x01\x00\x00"s, "x.npy: ends after 11 bytes, inside the header"},
    {"\x93NUMPY\x04\x00\x01\x00\x00\x00\n"s, "x.npy: has .npy version 4.0, expected 1.0, 2.0 or 3.0"},
    {"\x93NUMPY\x01\x01\x01\x00\x00\x00\n"s, "x.npy: has .npy version 1.1, expected 1.0, 2.0 or 3.0"},
    {kGoodFile.substr(0, 40), "x.npy: says its header has 58 bytes, but only 30 follow"},
    {"\x93NUMPY\x02\x00\xFF\xFF\xFF\xFF{}\n"s, "x.npy: says its header has 4294967295 bytes, at most 65536 are read"},
    {npy(std::string(70000, ' '), "", 2), "x.npy: says its header has 70001 bytes, at most 65536 are read"},
    {"\x93NUMPY\x01\x00\x02\x00{}"s, "x.npy: the header does not end with a newline"},
    {"\x93NUMPY\x01\x00\x00\x00"s, "x.npy: the header does not end with a newline"},
    {npy("{}", ""), "x.npy: the header has no key 'descr'"},
    {npy("{'descr': '<f4'}", kFourBytes), "x.npy: the header has no key 'fortran_order'"},
    {npy("{'descr': '<f4', 'fortran_order': False}", kFourBytes), "x.npy: the header has no key 'shape'"},
    {npy("{'descr': '<f4', 'descr': '<f8'}", kFourBytes), "x.npy: the header has the key 'descr' twice"},
    {npy("{'fortran_order': True, 'fortran_order': True}", ""), "x.npy: the header has the key 'fortran_order' twice"},
    {npy("{'shape': (), 'shape': ()}", ""), "x.npy: the header has the key 'shape' twice"},
    {npy("{'descr': '<f4', 'color': 1}", kFourBytes),
     R"(x.npy: the header has the unknown key "color", expected 'descr', 'fortran_order' and 'shape')"},
    {npy("[1, 2]", ""), R"(x.npy: header, byte 0: expected '{', came "[1, 2]\x0a")"},
    {npy("{'descr' '<f4'}", kFourBytes), R"(x.npy: header, byte 9: expected ':', came "'<f4'}\x0a")"},
    {npy("{descr: '<f4'}", kFourBytes), R"(x.npy: header, byte 1: expected a key in quotes, came "descr: '<f4'}\x0a")"},
    {npy("{'descr': '<f4' 'shape': ()}", kFourBytes),
     R"(x.npy: header, byte 16: expected '}', came "'shape': ()}\x0a")"},
    {npy(header("<f4", "(1,)") + "{}", kFourBytes),
     R"(x.npy: header, byte 57: expected the end of the header, came "{}\x0a")"},
    {npy("{'descr': '<f4", kFourBytes),
     R"(x.npy: header, byte 10: expected a string without escapes that ends on its line, came "'<f4\x0a")"},
    {npy("{'des\\x63r': '<f4'}", kFourBytes),
     "x.npy: header, byte 1: expected a string without escapes that ends on its line, "
     R"(came "'des\\x63r': '<f4'}\x0a")"},
    // Python that is more than a literal of numbers.
    {npy("{'descr': __import__('os').system('x')}", kFourBytes),
     R"(x.npy: header, byte 10: expected a type such as '<f4' for 'descr', came "__import__('os').sys")"},
    {npy(header("<f4", "(2*3,)"), kFourBytes),
     R"(x.npy: header, byte 52: expected ',' or ')' in 'shape', came "*3,), }\x0a")"},
    {npy(header("<f4", "((1,),)"), kFourBytes),
     R"(x.npy: header, byte 51: expected a plain integer in 'shape', came "(1,),), }\x0a")"},
    {npy(header("<f4", "(((((((1,),),),),),)"), kFourBytes),
     R"(x.npy: header, byte 51: expected a plain integer in 'shape', came "((((((1,),),),),),),")"},
    {npy(header("<f4", "[1]"), kFourBytes),
     R"(x.npy: header, byte 50: expected a tuple such as (2, 3) for 'shape', came "[1], }\x0a")"},
    {npy(header("<f4", "1"), kFourBytes),
     R"(x.npy: header, byte 50: expected a tuple such as (2, 3) for 'shape', came "1, }\x0a")"},
    {npy(header("<f4", "(1)"), kFourBytes), "x.npy: 'shape' is a number in parentheses, expected a tuple such as (3,)"},
    {npy(header("<f4", "(,)"), kFourBytes),
     R"(x.npy: header, byte 51: expected a plain integer in 'shape', came ",), }\x0a")"},
    {npy(header("<f4", "(1 1)"), kFourBytes),
     R"(x.npy: header, byte 53: expected ',' or ')' in 'shape', came "1), }\x0a")"},
    {npy(header("<f4", "(1"), kFourBytes),
     R"(x.npy: header, byte 54: expected a plain integer in 'shape', came "}\x0a")"},
    {npy(header("<f4", "(-1,)"), kFourBytes), "x.npy: 'shape' has a negative dimension"},
    {npy(header("<f4", "(True,)"), kFourBytes), "x.npy: 'shape' has a truth value as a dimension"},
    {npy(header("<f4", "(1.0,)"), kFourBytes),
     R"(x.npy: header, byte 52: expected ',' or ')' in 'shape', came ".0,), }\x0a")"},
    {npy(header("<f4", "(0x1,)"), kFourBytes),
     R"(x.npy: header, byte 52: expected ',' or ')' in 'shape', came "x1,), }\x0a")"},
    {npy(header("<f4", "(01,)"), kFourBytes),
     R"(x.npy: header, byte 51: expected an integer without leading zeros in 'shape', came "01,), }\x0a")"},
    {npy(header("<f4", "(1_0,)"), kFourBytes),
     R"(x.npy: header, byte 52: expected ',' or ')' in 'shape', came "_0,), }\x0a")"},
    {npy(header("<f4", "(99999999999999999999,)"), kFourBytes),
     "x.npy: 'shape' has a dimension that does not fit 64 bits"},
    {npy(header("<f4", "(4294967296, 4294967296)"), kFourBytes),
     "x.npy: the bytes of shape [4294967296, 4294967296] of f32 do not fit 64 bits"},
    {npy(header("<f4", "(4611686018427387904,)"), kFourBytes),
     "x.npy: the bytes of shape [4611686018427387904] of f32 do not fit 64 bits"},
    {npy(header("<f4", "(1, 1, 1, 1, 1, 1)"), kFourBytes), "x.npy: 'shape' has 6 dimensions, qkv holds at most 5"},
    {npy(header("<f4", "(1,)", "0"), kFourBytes),
     R"(x.npy: header, byte 34: expected True or False for 'fortran_order', came "0, 'shape': (1,), }\x0a")"},
    {npy(header("|O", "(1,)"), kFourBytes),
     R"(x.npy: has dtype "|O" (Python objects), expected one of f2 f4 f8 i4 i8 u1 b1)"},
    {npy(header("|V4", "(1,)"), kFourBytes),
     R"(x.npy: has dtype "|V4" (raw or structured records), expected one of f2 f4 f8 i4 i8 u1 b1)"},
    {npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", kFourBytes),
     "x.npy: 'descr' is a list: structured arrays are not read, expected a type such as '<f4'"},
    {npy(header("<U1", "(1,)"), kFourBytes),
     R"(x.npy: has dtype "<U1" (strings), expected one of f2 f4 f8 i4 i8 u1 b1)"},
    {npy(header("|S4", "(1,)"), kFourBytes),
     R"(x.npy: has dtype "|S4" (strings), expected one of f2 f4 f8 i4 i8 u1 b1)"},
    {npy(header("<M8[ns]", "(1,)"), kFourBytes),
     R"(x.npy: has dtype "<M8[ns]" (dates or durations), expected one of f2 f4 f8 i4 i8 u1 b1)"},
    {npy(header("<m8[s]", "(1,)"), kFourBytes),
     R"(x.npy: has dtype "<m8[s]" (dates or durations), expected one of f2 f4 f8 i4 i8 u1 b1)"},
    {npy(header("<c8", "(1,)"), kFourBytes),
     R"(x.npy: has dtype "<c8" (complex numbers), expected one of f2 f4 f8 i4 i8 u1 b1)"},
    {npy(header("<u2", "(1,)"), "ab"),
     R"(x.npy: has dtype "<u2" (a width qkv lacks), expected one of f2 f4 f8 i4 i8 u1 b1)"},
    {npy(header("|i1", "(1,)"), "a"),
     R"(x.npy: has dtype "|i1" (a width qkv lacks), expected one of f2 f4 f8 i4 i8 u1 b1)"},
    {npy(header("<f16", "(1,)"), kFourBytes),
     R"(x.npy: has dtype "<f16" (a width qkv lacks), expected one of f2 f4 f8 i4 i8 u1 b1)"},
    {npy(header("", "(1,)"), kFourBytes),
     R"(x.npy: has dtype "" (a type qkv has no use for), expected one of f2 f4 f8 i4 i8 u1 b1)"},
    {npy(header("<f4", "(2,)"), kFourBytes), "x.npy: shape [2] of f32 needs 8 bytes of data, but 4 follow the header"},
    {npy(header("<f4", "(1,)"), kFourBytes + "x"),
     "x.npy: shape [1] of f32 needs 4 bytes of data, but 5 follow the header"},
    {npy(header("<f4", "(0,)"), kFourBytes), "x.npy: shape [0] of f32 needs 0 bytes of data, but 4 follow the header"},
};

TEST(NpyTest, RefusesWithASentence) {
  for (const auto& wrong : kWrongFiles) EXPECT_EQ(refusal([&] { parse(wrong.bytes); }), wrong.message);
}

TEST(NpyTest, NoPrefixOfAFileIsAFile) {
  for (size_t size = 0; size < kGoodFile.size(); ++size) {
    EXPECT_NE(refusal([&] { parse(kGoodFile.substr(0, size)); }), "no error") << size;
  }
}

TEST(NpyTest, WritesWhatItReads) {
  const TemporaryFolder folder;
  const std::string path = folder / "a.npy";
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::boolean, DType::u8, DType::i32, DType::i64}) {
    for (const Dims& shape : {Dims{}, Dims{3}, Dims{2, 0}, Dims{2, 3, 4}, Dims{1, 2, 3, 2, 1}}) {
      Tensor tensor(dtype, shape);
      for (int64_t i = 0; i < tensor.view().elements(); ++i) {
        store_from_double(dtype, tensor.mutable_view().at(i), static_cast<double>(i));
      }
      write_npy(path, tensor.view());
      const Tensor read = read_npy(path);
      EXPECT_EQ(read.dtype(), dtype);
      EXPECT_EQ(to_string(read.shape()), to_string(shape));
      EXPECT_EQ(values(read), values(tensor));
      const std::string bytes = read_bytes(path);
      EXPECT_EQ((bytes.size() - static_cast<size_t>(tensor.view().elements() * size_of(dtype))) % 64, 0u);
    }
  }
}

TEST(NpyTest, WritesStridedViewsInRowMajorOrder) {
  const TemporaryFolder folder;
  const std::string path = folder / "a.npy";
  const float data[] = {0, 1, 2, 3, 4, 5};
  write_npy(path, TensorView(data + 5, Dims{3, 2}, Dims{-1, -3}));
  EXPECT_EQ(values(read_npy(path)), (Values{5, 2, 4, 1, 3, 0}));
  // More than one buffer of the writer, in a form that cannot be written as it lies.
  const int64_t rows = 700, columns = 900;
  Tensor large(DType::f32, Dims{rows, columns});
  for (int64_t i = 0; i < rows * columns; ++i)
    store_from_double(DType::f32, large.mutable_view().at(i), static_cast<double>(i));
  write_npy(path, TensorView(DType::f32, large.view().data(), Dims{columns, rows}, Dims{1, columns}));
  const Tensor read = read_npy(path);
  for (int64_t i = 0; i < rows * columns; ++i) {
    ASSERT_EQ(load_as_double(DType::f32, read.view().at(i)), static_cast<double>(i % rows * columns + i / rows)) << i;
  }
  write_npy(path, TensorView(DType::f32, large.view().at(rows * columns - 1), Dims{rows * columns}, Dims{-1}));
  const Tensor backwards = read_npy(path);
  for (int64_t i = 0; i < rows * columns; ++i) {
    ASSERT_EQ(load_as_double(DType::f32, backwards.view().at(i)), static_cast<double>(rows * columns - 1 - i)) << i;
  }
}

TEST(NpyTest, TruthIsWrittenAsOne) {
  const TemporaryFolder folder;
  const Boolean data[] = {{0}, {1}, {7}, {255}};
  write_npy(folder / "a.npy", TensorView(data, Dims{4}));
  EXPECT_EQ(read_bytes(folder / "a.npy").substr(128), "\0\1\1\1"s);
}

TEST(NpyTest, RefusesWhatNumPyCannotName) {
  const TemporaryFolder folder;
  const std::string path = folder / "a.npy";
  Tensor brain(DType::bf16, Dims{1});
  EXPECT_EQ(refusal([&] { write_npy(path, brain.view()); }),
            path + ": NumPy has no name for bf16; write .safetensors, or convert to f32");
  EXPECT_EQ(refusal([&] { write_npy(path, TensorView()); }), path + ": there is no tensor to write");
  EXPECT_TRUE(folder.names().empty());
}

TEST(NpyTest, FilesThatCannotBeOpened) {
  const TemporaryFolder folder;
  EXPECT_EQ(refusal([&] { read_npy(folder / "none.npy"); }),
            "system: " + folder / "none.npy" + ": cannot be opened: No such file or directory");
  EXPECT_EQ(refusal([&] { read_npy(folder / ""); }), "system: " + folder / "" + ": cannot be opened: Is a directory");
  EXPECT_EQ(refusal([&] { read_npy("/dev/null"); }), "system: /dev/null: cannot be opened: not a regular file");
  write_bytes(folder / "empty.npy", "");
  EXPECT_EQ(refusal([&] { read_npy(folder / "empty.npy"); }),
            folder / "empty.npy" + R"(: is not a .npy file: it starts with "", expected "\x93NUMPY")");
}

// Headers of other writers may leave the data anywhere.
TEST(NpyTest, DataOffTheGridIsCopiedNotCast) {
  const TemporaryFolder folder;
  for (size_t pad = 0; pad < 8; ++pad) {
    const std::string text = header("<f8", "(2,)") + std::string(pad, ' ');
    write_bytes(folder / "a.npy", npy(text, bytes_of(0.25) + bytes_of(3.0)));
    const Tensor tensor = read_npy(folder / "a.npy");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.view().data()) % alignof(double), 0u) << pad;
    EXPECT_EQ(values(tensor), (Values{0.25, 3})) << pad;
  }
}

TEST(NpyTest, TenGigabytesOpenWithoutBeingRead) {
  const TemporaryFolder folder;
  const std::string path = folder / "large.npy";
  const int64_t elements = 10'000'000'000 / 4;
  std::string text = header("<f4", "(2, 1250000000)", "True");
  text.resize(128 - 10 - 1, ' ');
  const std::string head = npy(text, "");
  write_bytes(path, head);
  std::filesystem::resize_file(path, head.size() + static_cast<size_t>(elements) * 4);
  const int64_t before = resident_bytes();
  const Tensor tensor = read_npy(path);
  EXPECT_EQ(tensor.view().elements(), elements);
  EXPECT_EQ(load_as_double(DType::f32, tensor.view().at(elements - 1)), 0);
  EXPECT_LT(resident_bytes() - before, 16 << 20);
}

}  // namespace
}  // namespace qkv

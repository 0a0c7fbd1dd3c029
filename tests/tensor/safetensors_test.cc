// SPDX-License-Identifier: Apache-2.0
#include "qkv/tensor/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tensor/files.h"

namespace qkv {
namespace {

using std::string_literals::operator""s;

std::string file(const std::string& json, const std::string& data = "") {
  return bytes_of(static_cast<uint64_t>(json.size())) + json + data;
}

/// Concatenated, not added: g++ 12 warns of a copy that cannot happen in "{" + string.
template <class... Parts>
std::string object(const Parts&... parts) {
  return concat("{", parts..., "}");
}

TensorFile parse(const std::string& bytes) { return parse_safetensors(bytes.data(), bytes.size(), "x"); }

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return concat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":", shape, ",\"data_offsets\":", offsets, "}");
}

std::vector<double> values(const Tensor& tensor) {
  std::vector<double> result;
  for (int64_t i = 0; i < tensor.view().elements(); ++i) {
    result.push_back(load_as_double(tensor.dtype(), tensor.view().at(i)));
  }
  return result;
}

using Values = std::vector<double>;

TEST(SafetensorsTest, ReadsEveryTypeQkvHolds) {
  const struct {
    const char* name;
    DType dtype;
    std::string bytes;
    double value;
  } cases[] = {
      {"F64", DType::f64, bytes_of(0.1), 0.1},
      {"F32", DType::f32, bytes_of(0.5f), 0.5},
      {"BF16", DType::bf16, bytes_of(uint16_t{0xC020}), -2.5},
      {"F16", DType::f16, bytes_of(uint16_t{0xC100}), -2.5},
      {"BOOL", DType::boolean, bytes_of(uint8_t{1}), 1},
      {"U8", DType::u8, bytes_of(uint8_t{200}), 200},
      {"I32", DType::i32, bytes_of(int32_t{-70000}), -70000},
      {"I64", DType::i64, bytes_of(int64_t{-5000000000}), -5e9},
  };
  for (const auto& c : cases) {
    const TensorFile read = parse(file(object(entry("a", c.name, "[1]", concat("[0,", c.bytes.size(), "]"))), c.bytes));
    ASSERT_EQ(read.tensors.count("a"), 1u);
    EXPECT_EQ(read.tensors.at("a").dtype(), c.dtype);
    EXPECT_EQ(values(read.tensors.at("a")), Values{c.value});
  }
}

TEST(SafetensorsTest, ReadsWhatTheFormatAllows) {
  const std::string data = bytes_of(1.0f) + bytes_of(2.0f) + bytes_of(3.0f);
  // Any order, blanks around the header, fields of later versions, zero sizes, rank 0, metadata.
  const TensorFile read =
      parse(file(" \n{" + entry("b", "F32", "[]", "[8,12]") + ", \"__metadata__\": {\"format\": \"pt\", \"\": \"\"}, " +
                     "\"a\": {\"later\": {\"x\": [1.5, null, true, -3]}, \"dtype\": \"F32\", \"shape\": [2], "
                     "\"data_offsets\": [0, 8], \"note\": \"n\"}, " +
                     entry("none", "F64", "[0, 9223372036854775807, 7]", "[8,8]") + ", " +
                     entry("end", "U8", "[0]", "[12,12]") + "}  ",
                 data));
  EXPECT_EQ(values(read.tensors.at("a")), (Values{1, 2}));
  EXPECT_EQ(values(read.tensors.at("b")), Values{3});
  EXPECT_EQ(read.tensors.at("b").shape().rank(), 0);
  EXPECT_EQ(to_string(read.tensors.at("none").shape()), "[0, 9223372036854775807, 7]");
  EXPECT_EQ(read.metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"", ""}}));
  EXPECT_TRUE(parse(file("{}")).tensors.empty());
  EXPECT_EQ(parse(file("{\"\\u00e9\\ud83d\\ude00\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}"))
                .tensors.count("\u00e9\U0001F600"),
            1u);
}

const std::string kEightBytes = "abcdefgh";
std::string one(const std::string& text) { return file(object(text), kEightBytes); }
const std::string kEntry = entry("a", "F32", "[2]", "[0,8]");
const std::string kNotNumbers = " must be a list of non-negative integers, came ";

const struct {
  std::string bytes;
  std::string message;
} kWrongFiles[] = {
    {"", "x: is not a .safetensors file: it has 0 bytes, expected at least 8"},
    {"1234567", "x: is not a .safetensors file: it has 7 bytes, expected at least 8"},
    {bytes_of(uint64_t{3}) + "{}", "x: says its header has 3 bytes, but only 2 follow"},
    {bytes_of(~uint64_t{0}) + "{}", "x: says its header has 18446744073709551615 bytes, at most 100000000 are read"},
    {bytes_of(uint64_t{100000001}) + "{}", "x: says its header has 100000001 bytes, at most 100000000 are read"},
    {bytes_of(uint64_t{100000000}) + "{}", "x: says its header has 100000000 bytes, but only 2 follow"},
    {file(""), R"(x: the header is not valid JSON at byte 1, near "")"},
    {file("{"), R"(x: the header is not valid JSON at byte 2, near "{")"},
    {file("{}}"), R"(x: the header is not valid JSON at byte 3, near "{}}")"},
    {file("{'a':1}"), R"(x: the header is not valid JSON at byte 2, near "{'")"},
    {file("{\"a\":{\"dtype\":\"F32\",}}"), R"(x: the header is not valid JSON at byte 21, near "\"F32\",}")"},
    {file("{} // note"), R"(x: the header is not valid JSON at byte 4, near "{} /")"},
    {file("{\"\xFF\":{}}"), R"(x: the header is not valid JSON at byte 3, near "\"\xff")"},
    {file("{\"\\ud800\":{}}"), R"(x: the header is not valid JSON at byte 9, near "\"\\ud800\"")"},
    {file("{\"a\0b\":{}}"s), R"(x: the header is not valid JSON at byte 4, near "\"a<U+0000>")"},
    {file("\xEF\xBB\xBF{}"), "x: the header starts with a byte order mark, expected '{'"},
    {file("[]"), "x: the header must be a JSON object, came a list"},
    {file("7"), "x: the header must be a JSON object, came 7"},
    {file("null"), "x: the header must be a JSON object, came null"},
    {file("\"a\""), "x: the header must be a JSON object, came \"a\""},
    {file("{\"a\":1}"), "x: tensor \"a\" must be an object, came 1"},
    {file("{\"a\":[1]}"), "x: tensor \"a\" must be an object, came a list"},
    {file("{\"a\":null}"), "x: tensor \"a\" must be an object, came null"},
    {file("{\"__metadata__\":\"pt\"}"), "x: __metadata__ must be an object, came \"pt\""},
    {file("{\"__metadata__\":[]}"), "x: __metadata__ must be an object, came a list"},
    {file("{\"__metadata__\":{\"n\":1}}"), "x: __metadata__: \"n\" must be a string, came 1"},
    {file("{\"__metadata__\":{\"n\":{}}}"), "x: __metadata__: \"n\" must be a string, came an object"},
    {file("{\"__metadata__\":{\"n\":[]}}"), "x: __metadata__: \"n\" must be a string, came a list"},
    {file("{\"__metadata__\":{\"n\":\"1\",\"n\":\"2\"}}"), "x: the key \"n\" occurs twice in \"__metadata__\""},
    {one(kEntry + "," + kEntry), "x: the key \"a\" occurs twice"},
    {file("{\"__metadata__\":{},\"__metadata__\":{}}"), "x: the key \"__metadata__\" occurs twice"},
    {one("\"a\":{\"dtype\":\"F32\",\"dtype\":\"F64\"}"), "x: the key \"dtype\" occurs twice in \"a\""},
    {one("\"a\":{\"note\":{\"k\":1,\"k\":2}}"), "x: the key \"k\" occurs twice in \"a\""},
    {file("{\"a\\u0000b\":{}}"), "x: the key \"a\\x00b\" contains NUL"},
    {one("\"a\":{\"x\":[[[1]]]}"), "x: the header is nested more than 4 deep, in \"a\""},
    {file("{\"a\":" + std::string(100000, '[')), "x: tensor \"a\" must be an object, came a list"},
    {file("{\"a\":{\"x\":" + std::string(100000, '[')), "x: the header is nested more than 4 deep, in \"a\""},
    {one("\"a\":{}"), "x: tensor \"a\": has no dtype"},
    {one("\"a\":{\"dtype\":\"F32\"}"), "x: tensor \"a\": has no shape"},
    {one("\"a\":{\"dtype\":\"F32\",\"shape\":[2]}"), "x: tensor \"a\": has no data_offsets"},
    {one("\"a\":{\"dtype\":7}"), "x: tensor \"a\": dtype must be a string, came 7"},
    {one("\"a\":{\"dtype\":[\"F32\"]}"), "x: tensor \"a\": dtype must be a string, came a list"},
    {one("\"a\":{\"dtype\":{}}"), "x: tensor \"a\": dtype must be a string, came an object"},
    {one(entry("a", "I8", "[8]", "[0,8]")),
     "x: tensor \"a\": has dtype \"I8\", expected one of F64 F32 BF16 F16 BOOL U8 I32 I64"},
    {one(entry("a", "F8_E4M3", "[8]", "[0,8]")),
     "x: tensor \"a\": has dtype \"F8_E4M3\", expected one of F64 F32 BF16 F16 BOOL U8 I32 I64"},
    {one(entry("a", "f32", "[2]", "[0,8]")),
     "x: tensor \"a\": has dtype \"f32\", expected one of F64 F32 BF16 F16 BOOL U8 I32 I64"},
    {one(entry("a", "F32", "2", "[0,8]")), "x: tensor \"a\": shape" + kNotNumbers + "2"},
    {one(entry("a", "F32", "\"2\"", "[0,8]")), "x: tensor \"a\": shape" + kNotNumbers + "\"2\""},
    {one(entry("a", "F32", "{}", "[0,8]")), "x: tensor \"a\": shape" + kNotNumbers + "an object"},
    {one(entry("a", "F32", "[[2]]", "[0,8]")), "x: tensor \"a\": shape" + kNotNumbers + "a list in it"},
    {one(entry("a", "F32", "[{}]", "[0,8]")), "x: tensor \"a\": shape" + kNotNumbers + "an object in it"},
    {one(entry("a", "F32", "[-2]", "[0,8]")), "x: tensor \"a\": shape" + kNotNumbers + "-2 in it"},
    {one(entry("a", "F32", "[2.0]", "[0,8]")), "x: tensor \"a\": shape" + kNotNumbers + "2.0 in it"},
    {one(entry("a", "F32", "[2e0]", "[0,8]")), "x: tensor \"a\": shape" + kNotNumbers + "2e0 in it"},
    {one(entry("a", "F32", "[-0]", "[0,8]")), "x: tensor \"a\": shape" + kNotNumbers + "0 in it"},
    {one(entry("a", "F32", "[true]", "[0,8]")), "x: tensor \"a\": shape" + kNotNumbers + "true in it"},
    {one(entry("a", "F32", "[null]", "[0,8]")), "x: tensor \"a\": shape" + kNotNumbers + "null in it"},
    {one(entry("a", "F32", "[\"2\"]", "[0,8]")), "x: tensor \"a\": shape" + kNotNumbers + "\"2\" in it"},
    {one(entry("a", "F32", "[18446744073709551616]", "[0,8]")),
     "x: tensor \"a\": shape" + kNotNumbers + "18446744073709551616 in it"},
    {one(entry("a", "F32", "[9223372036854775808]", "[0,8]")),
     "x: tensor \"a\": shape has the size 9223372036854775808, which does not fit 64 bits"},
    {one(entry("a", "F32", "[4294967296,4294967296]", "[0,8]")),
     "x: tensor \"a\": the bytes of shape [4294967296, 4294967296] do not fit 64 bits"},
    {one(entry("a", "F32", "[1,1,1,1,1,2]", "[0,8]")), "x: tensor \"a\": shape has 6 dimensions, qkv holds at most 5"},
    {one(entry("a", "F32", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2]", "[0,8]")),
     "x: tensor \"a\": shape has more than 32 numbers"},
    {one(entry("a", "F32", "[2]", "[0]")), "x: tensor \"a\": data_offsets has 1 numbers, expected 2"},
    {one(entry("a", "F32", "[2]", "[]")), "x: tensor \"a\": data_offsets has 0 numbers, expected 2"},
    {one(entry("a", "F32", "[2]", "[0,8,8]")), "x: tensor \"a\": data_offsets has more than 2 numbers"},
    {one(entry("a", "F32", "[2]", "[-8,0]")), "x: tensor \"a\": data_offsets" + kNotNumbers + "-8 in it"},
    {one(entry("a", "F32", "[2]", "[8,0]")), "x: tensor \"a\": data_offsets [8, 0] run backwards"},
    {one(entry("a", "F32", "[3]", "[0,12]")), "x: tensor \"a\": data_offsets end at 12, the data has 8 bytes"},
    {one(entry("a", "F32", "[2]", "[18446744073709551608,18446744073709551615]")),
     "x: tensor \"a\": data_offsets end at 18446744073709551615, the data has 8 bytes"},
    {one(entry("a", "F32", "[1]", "[0,8]")),
     "x: tensor \"a\": shape [1] of F32 needs 4 bytes, data_offsets [0, 8] give 8"},
    {one(entry("a", "F32", "[0]", "[0,8]")),
     "x: tensor \"a\": shape [0] of F32 needs 0 bytes, data_offsets [0, 8] give 8"},
    {one(kEntry + "," + entry("b", "F32", "[2]", "[0,8]")),
     "x: tensor \"b\" begins at 0 inside tensor \"a\", which ends at 8"},
    {one(kEntry + "," + entry("b", "U8", "[4]", "[4,8]")),
     "x: tensor \"b\" begins at 4 inside tensor \"a\", which ends at 8"},
    {one(kEntry + "," + entry("b", "U8", "[0]", "[4,4]")),
     "x: tensor \"b\" begins at 4 inside tensor \"a\", which ends at 8"},
    {one(entry("a", "F32", "[1]", "[4,8]")), "x: tensor \"a\" begins at 4, but the data is described only up to 0"},
    {one(entry("a", "U8", "[2]", "[0,2]") + "," + entry("b", "U8", "[4]", "[4,8]")),
     "x: tensor \"b\" begins at 4, but the data is described only up to 2"},
    {one(entry("a", "F32", "[1]", "[0,4]")), "x: the tensors end at 4, the data has 8 bytes"},
    {file("{}", "z"), "x: the tensors end at 0, the data has 1 bytes"},
};

TEST(SafetensorsTest, RefusesWithASentence) {
  for (const auto& wrong : kWrongFiles) EXPECT_EQ(refusal([&] { parse(wrong.bytes); }), wrong.message);
}

TEST(SafetensorsTest, NoPrefixOfAFileIsAFile) {
  const std::string good = file(object(entry("a", "F32", "[2]", "[0,8]")), "abcdefgh");
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_NE(refusal([&] { parse(good.substr(0, size)); }), "no error") << size;
  }
}

TEST(SafetensorsTest, WritesWhatItReads) {
  const TemporaryFolder folder;
  const std::string path = folder / "a.safetensors";
  std::map<std::string, Tensor> tensors;
  int count = 0;
  for (const DType dtype :
       {DType::boolean, DType::f16, DType::u8, DType::f64, DType::bf16, DType::i32, DType::f32, DType::i64}) {
    for (const Dims& shape : {Dims{}, Dims{3}, Dims{2, 0}, Dims{1, 2, 3, 1, 1}}) {
      Tensor tensor(dtype, shape);
      for (int64_t i = 0; i < tensor.view().elements(); ++i) {
        store_from_double(dtype, tensor.mutable_view().at(i), static_cast<double>(i));
      }
      tensors[std::to_string(count++) + " \"\\/\u00e9"] = tensor;
    }
  }
  std::map<std::string, TensorView> views;
  for (const auto& [name, tensor] : tensors) views[name] = tensor.view();
  const std::map<std::string, std::string> metadata{{"format", "pt"}, {"quote\"", "line\nbreak"}};
  write_safetensors(path, views, metadata);

  const TensorFile read = read_safetensors(path);
  EXPECT_EQ(read.metadata, metadata);
  ASSERT_EQ(read.tensors.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const Tensor& other = read.tensors.at(name);
    EXPECT_EQ(other.dtype(), tensor.dtype()) << name;
    EXPECT_EQ(to_string(other.shape()), to_string(tensor.shape())) << name;
    EXPECT_EQ(values(other), values(tensor)) << name;
  }
  uint64_t length = 0;
  const std::string bytes = read_bytes(path);
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  EXPECT_EQ(bytes[8], '{');
  EXPECT_EQ(folder.names(), std::vector<std::string>{"a.safetensors"});

  write_safetensors(path, {});
  EXPECT_TRUE(read_safetensors(path).tensors.empty());
}

TEST(SafetensorsTest, RefusesNamesThatCannotBeWritten) {
  const TemporaryFolder folder;
  const std::string path = folder / "a.safetensors";
  const float data[1] = {1};
  const TensorView view(data, Dims{1});
  EXPECT_EQ(refusal([&] { write_safetensors(path, {{"a\0b"s, view}}); }), path + ": the name \"a\\x00b\" contains NUL");
  EXPECT_EQ(refusal([&] {
              write_safetensors(path, {{"__metadata__", view}});
            }),
            path + ": __metadata__ cannot be the name of a tensor");
  EXPECT_EQ(refusal([&] { write_safetensors(path, {{"\xFF", view}}); }), path + ": \"\\xff\" is not UTF-8");
  EXPECT_EQ(refusal([&] {
              write_safetensors(path, {{"a", view}}, {{"k", "\xC3"}});
            }),
            path + ": \"\\xc3\" is not UTF-8");
  EXPECT_EQ(refusal([&] { write_safetensors(path, {{"a", TensorView()}}); }), path + ": tensor \"a\" is absent");
  EXPECT_TRUE(folder.names().empty());
}

TEST(SafetensorsTest, DataOffTheGridIsCopiedNotCast) {
  const TemporaryFolder folder;
  const std::string path = folder / "a.safetensors";
  for (size_t pad = 0; pad < 8; ++pad) {
    const std::string json = object(entry("a", "F64", "[2]", "[0,16]")) + std::string(pad, ' ');
    write_bytes(path, file(json, bytes_of(0.25) + bytes_of(3.0)));
    const Tensor tensor = read_safetensors(path).tensors.at("a");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.view().data()) % alignof(double), 0u) << pad;
    EXPECT_EQ(values(tensor), (Values{0.25, 3})) << pad;
  }
}

TEST(SafetensorsTest, TensorsOutliveTheFileObjectAndTheName) {
  const TemporaryFolder folder;
  const std::string path = folder / "a.safetensors";
  const float data[2] = {1, 2};
  write_safetensors(path, {{"a", TensorView(data, Dims{2})}});
  const Tensor tensor = read_safetensors(path).tensors.at("a");
  // Replacing the file, from its own content even, leaves what is mapped alone.
  write_safetensors(path, {{"b", TensorView(DType::f32, tensor.view().at(1), Dims{1})}});
  EXPECT_EQ(values(read_safetensors(path).tensors.at("b")), Values{2});
  std::filesystem::remove(path);
  EXPECT_EQ(values(tensor), (Values{1, 2}));
}

TEST(SafetensorsTest, TenGigabytesOpenWithoutBeingRead) {
  const TemporaryFolder folder;
  const std::string path = folder / "large.safetensors";
  std::string json = object(entry("a", "F32", "[2500000000]", "[0,10000000000]"));
  json.resize((json.size() + 7) / 8 * 8, ' ');
  const std::string head = file(json);
  write_bytes(path, head);
  std::filesystem::resize_file(path, head.size() + 10'000'000'000u);
  const int64_t before = resident_bytes();
  const TensorFile read = read_safetensors(path);
  EXPECT_EQ(load_as_double(DType::f32, read.tensors.at("a").view().at(2'499'999'999)), 0);
  EXPECT_LT(resident_bytes() - before, 16 << 20);
}

}  // namespace
}  // namespace qkv

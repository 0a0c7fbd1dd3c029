// SPDX-License-Identifier: Apache-2.0
// The header is a Python literal. It is read by hand as the one form that an array of numbers has,
//   {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
// with its keys in any order; whatever else Python could mean by a literal is refused where it begins.
#include "tensor/npy_header.h"

#include <charconv>
#include <optional>
#include <string_view>

#include "qkv/support/error.h"
#include "tensor/text.h"

namespace qkv {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kLongestHeader = size_t{1} << 16;

/// NumPy's letters for what is not a plain number, to say what came.
const char* kind_name(char letter) {
  switch (letter) {
    case 'O': return "Python objects";
    case 'V': return "raw or structured records";
    case 'S':
    case 'a':
    case 'U': return "strings";
    case 'M':
    case 'm': return "dates or durations";
    case 'c': return "complex numbers";
    default: return "a type qkv has no use for";
  }
}

class LiteralParser {
 public:
  LiteralParser(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  NpyHeader parse() {
    expect('{');
    while (!accept('}')) {
      entry();
      if (accept(',')) continue;
      expect('}');
      break;
    }
    skip_blanks();
    if (at_ < text_.size()) fail_here("the end of the header");
    require(descr_.has_value(), file_, ": the header has no key 'descr'");
    require(fortran_.has_value(), file_, ": the header has no key 'fortran_order'");
    require(shape_.has_value(), file_, ": the header has no key 'shape'");
    NpyHeader header;
    header.fortran = *fortran_;
    header.shape = *shape_;
    interpret_descr(header);
    return header;
  }

 private:
  void entry() {
    const std::string_view key = string_literal("a key in quotes");
    expect(':');
    if (key == "descr") {
      require(!descr_, file_, ": the header has the key 'descr' twice");
      skip_blanks();
      require(peek() != '[', file_,
              ": 'descr' is a list: structured arrays are not read, expected a type such as '<f4'");
      descr_ = string_literal("a type such as '<f4' for 'descr'");
    } else if (key == "fortran_order") {
      require(!fortran_, file_, ": the header has the key 'fortran_order' twice");
      fortran_ = truth_value();
    } else if (key == "shape") {
      require(!shape_, file_, ": the header has the key 'shape' twice");
      shape_ = tuple();
    } else {
      fail(file_, ": the header has the unknown key ", in_quotes(key),
           ", expected 'descr', 'fortran_order' and 'shape'");
    }
  }

  std::string_view string_literal(const char* expected) {
    skip_blanks();
    const char quote = peek();
    if (quote != '\'' && quote != '"') fail_here(expected);
    const size_t begin = at_ + 1;
    size_t end = begin;
    while (end < text_.size() && text_[end] != quote && text_[end] != '\\' && text_[end] != '\n') ++end;
    if (end == text_.size() || text_[end] != quote) fail_here("a string without escapes that ends on its line");
    at_ = end + 1;
    return text_.substr(begin, end - begin);
  }

  bool truth_value() {
    skip_blanks();
    if (accept_word("True")) return true;
    if (accept_word("False")) return false;
    fail_here("True or False for 'fortran_order'");
  }

  Dims tuple() {
    skip_blanks();
    if (peek() != '(') fail_here("a tuple such as (2, 3) for 'shape'");
    ++at_;
    Dims shape;
    int count = 0;
    bool comma = true;
    while (!accept(')')) {
      if (!comma) fail_here("',' or ')' in 'shape'");
      const int64_t size = dimension();
      if (++count <= Dims::kMaxRank) shape.push_back(size);
      comma = accept(',');
    }
    require(count != 1 || comma, file_, ": 'shape' is a number in parentheses, expected a tuple such as (3,)");
    require(count <= Dims::kMaxRank, file_, ": 'shape' has ", count, " dimensions, qkv holds at most ", Dims::kMaxRank);
    return shape;
  }

  int64_t dimension() {
    skip_blanks();
    require(peek() != '-', file_, ": 'shape' has a negative dimension");
    require(!starts_with("True") && !starts_with("False"), file_, ": 'shape' has a truth value as a dimension");
    const char* begin = text_.data() + at_;
    int64_t value = 0;
    const auto [end, problem] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (problem == std::errc::invalid_argument) fail_here("a plain integer in 'shape'");
    require(problem == std::errc(), file_, ": 'shape' has a dimension that does not fit 64 bits");
    if (*begin == '0' && end - begin > 1) fail_here("an integer without leading zeros in 'shape'");
    at_ += static_cast<size_t>(end - begin);
    if (peek() == 'L') ++at_;  // Python 2's long integers
    return value;
  }

  void interpret_descr(NpyHeader& header) const {
    std::string_view type = *descr_;
    char order = '|';
    if (!type.empty() && std::string_view("<>|=").find(type[0]) != std::string_view::npos) {
      order = type[0];
      type.remove_prefix(1);
    }
    struct Known {
      std::string_view name;
      DType dtype;
    };
    constexpr Known kKnown[] = {{"f8", DType::f64}, {"f4", DType::f32}, {"f2", DType::f16}, {"b1", DType::boolean},
                                {"u1", DType::u8},  {"i4", DType::i32}, {"i8", DType::i64}};
    for (const Known& known : kKnown) {
      if (type != known.name) continue;
      header.dtype = known.dtype;
      header.swapped = order == '>' && size_of(known.dtype) > 1;
      return;
    }
    const char letter = type.empty() ? '?' : type[0];
    const bool number = letter == 'f' || letter == 'i' || letter == 'u' || letter == 'b';
    fail(file_, ": has dtype ", in_quotes(*descr_), " (", number ? "a width qkv lacks" : kind_name(letter),
         "), expected one of f2 f4 f8 i4 i8 u1 b1");
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool starts_with(std::string_view word) const { return text_.substr(at_).substr(0, word.size()) == word; }
  bool accept_word(std::string_view word) {
    if (!starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  void skip_blanks() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
  }
  bool accept(char c) {
    skip_blanks();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail_here(concat("'", c, "'"));
  }
  [[noreturn]] void fail_here(const std::string& expected) const {
    fail(file_, ": header, byte ", at_, ": expected ", expected, ", came ",
         at_ < text_.size() ? in_quotes(text_.substr(at_, 20)) : "its end");
  }

  std::string_view text_;
  const std::string& file_;
  size_t at_ = 0;
  std::optional<std::string_view> descr_;
  std::optional<bool> fortran_;
  std::optional<Dims> shape_;
};

/// Where the literal begins and how long it is, by the version's rules.
std::string_view header_text(const char* bytes, size_t size, const std::string& file) {
  const std::string_view all(bytes, size);
  require(all.substr(0, kMagic.size()) == kMagic, file, ": is not a .npy file: it starts with ",
          in_quotes(all.substr(0, kMagic.size())), ", expected ", in_quotes(kMagic));
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<unsigned char>(bytes[i])); };
  require(size >= 10, file, ": ends after ", size, " bytes, inside the header");
  const size_t version = byte(6);
  require(version >= 1 && version <= 3 && byte(7) == 0, file, ": has .npy version ", version, ".", byte(7),
          ", expected 1.0, 2.0 or 3.0");
  const size_t begin = version == 1 ? 10 : 12;
  require(size >= begin, file, ": ends after ", size, " bytes, inside the header");
  size_t length = byte(8) | byte(9) << 8;
  if (version > 1) length |= byte(10) << 16 | byte(11) << 24;
  require(length <= kLongestHeader, file, ": says its header has ", length, " bytes, at most ", kLongestHeader,
          " are read");
  require(length <= size - begin, file, ": says its header has ", length, " bytes, but only ", size - begin, " follow");
  require(length > 0 && bytes[begin + length - 1] == '\n', file, ": the header does not end with a newline");
  return all.substr(begin, length);
}

}  // namespace

NpyHeader parse_npy_header(const char* bytes, size_t size, const std::string& file) {
  const std::string_view text = header_text(bytes, size, file);
  NpyHeader header = LiteralParser(text, file).parse();
  header.data_begin = static_cast<size_t>(text.data() - bytes) + text.size();
  int64_t needed = size_of(header.dtype);
  bool empty = false;
  bool fits = true;
  for (const int64_t extent : header.shape) {
    empty = empty || extent == 0;
    fits = fits && !__builtin_mul_overflow(needed, extent, &needed);
  }
  require(fits || empty, file, ": the bytes of shape ", header.shape, " of ", name(header.dtype),
          " do not fit 64 bits");
  if (empty) needed = 0;
  require(static_cast<size_t>(needed) == size - header.data_begin, file, ": shape ", header.shape, " of ",
          name(header.dtype), " needs ", needed, " bytes of data, but ", size - header.data_begin,
          " follow the header");
  return header;
}

std::string npy_preamble(DType dtype, const Dims& shape) {
  const char* descr = "";
  switch (dtype) {
    case DType::f64: descr = "<f8"; break;
    case DType::f32: descr = "<f4"; break;
    case DType::f16: descr = "<f2"; break;
    case DType::boolean: descr = "|b1"; break;
    case DType::u8: descr = "|u1"; break;
    case DType::i32: descr = "<i4"; break;
    case DType::i64: descr = "<i8"; break;
    case DType::bf16: fail("NumPy has no name for bf16");
  }
  std::string text = concat("{'descr': '", descr, "', 'fortran_order': False, 'shape': (");
  for (int axis = 0; axis < shape.rank(); ++axis) text += concat(axis == 0 ? "" : " ", shape[axis], ",");
  if (shape.rank() > 1) text.pop_back();
  text += "), }";
  constexpr size_t kBeforeText = 10;
  while ((kBeforeText + text.size() + 1) % 64 != 0) text += ' ';
  text += '\n';
  std::string result(kMagic);
  result += {'\x01', '\x00', static_cast<char>(text.size() & 0xFF), static_cast<char>(text.size() >> 8)};
  return result + text;
}

}  // namespace qkv

// SPDX-License-Identifier: Apache-2.0
#include "tensor/safetensors_json.h"

#include <nlohmann/json.hpp>
#include <set>

#include "qkv/support/error.h"
#include "tensor/text.h"

namespace qkv {
namespace {

constexpr size_t kDeepest = 4;
constexpr size_t kHighestRank = 32;
constexpr std::string_view kMetadata = "__metadata__";

using Json = nlohmann::json;

/// The events of nlohmann's SAX interface; its names are fixed. Containers by depth: 1 the header, 2 a tensor or the
/// metadata, 3 a shape, offsets, or part of a field this format does not know, which is skipped.
class HeaderHandler : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderHandler(const std::string& file) : file_(file) {}

  RawHeader take() { return std::move(header_); }

  bool null() override { return scalar("null"); }
  bool boolean(bool value) override { return scalar(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return scalar(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { return scalar(text); }
  bool binary(binary_t&) override { return scalar("binary"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (!in_numbers()) return scalar(std::to_string(value));
    std::vector<uint64_t>& numbers = field_ == Field::shape ? entry_->shape : entry_->offsets;
    const size_t most = field_ == Field::shape ? kHighestRank : 2;
    if (numbers.size() == most) {
      fail(file_, ": tensor ", in_quotes(name_), ": ", field_name(), " has more than ", most, " numbers");
    }
    numbers.push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (depth() == 2 && in_metadata_) {
      header_.metadata[key_] = value;
    } else if (depth() == 2 && field_ == Field::dtype) {
      entry_->dtype = value;
      entry_->has_dtype = true;
    } else {
      return scalar(in_quotes(value));
    }
    return true;
  }

  bool key(string_t& value) override {
    if (value.find('\0') != std::string::npos) fail(file_, ": the key ", in_quotes(value), " contains NUL");
    if (depth() == 1) {
      start_entry(value);
    } else {
      if (!keys_.back().insert(value).second) {
        fail(file_, ": the key ", in_quotes(value), " occurs twice in ", in_quotes(name_));
      }
      if (depth() > 2) return true;
      key_ = value;
      field_ = in_metadata_ ? Field::other : field_of(value);
    }
    return true;
  }

  bool start_object(size_t) override {
    if (depth() > 1) refuse_unless_skipped("an object");
    return open();
  }
  bool start_array(size_t) override {
    if (depth() == 0) refuse_root("a list");
    if (depth() == 1) refuse_entry("a list");
    if (!(depth() == 2 && !in_metadata_ && (field_ == Field::shape || field_ == Field::offsets))) {
      refuse_unless_skipped("a list");
    }
    return open();
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool parse_error(size_t position, const std::string& last, const Json::exception&) override {
    fail(file_, ": the header is not valid JSON at byte ", position, ", near ", in_quotes(last));
  }

 private:
  enum class Field { dtype, shape, offsets, other };

  static Field field_of(const std::string& key) {
    if (key == "dtype") return Field::dtype;
    if (key == "shape") return Field::shape;
    return key == "data_offsets" ? Field::offsets : Field::other;
  }
  const char* field_name() const {
    switch (field_) {
      case Field::dtype: return "dtype";
      case Field::shape: return "shape";
      case Field::offsets: return "data_offsets";
      case Field::other: break;
    }
    return "field";
  }

  /// The tensors themselves remember their names: keys_ would hold millions of them a second time.
  void start_entry(const std::string& name) {
    in_metadata_ = name == kMetadata;
    bool fresh = !has_metadata_;
    if (in_metadata_) {
      has_metadata_ = true;
    } else {
      const auto [place, inserted] = header_.tensors.try_emplace(name);
      fresh = inserted;
      entry_ = &place->second;
    }
    if (!fresh) fail(file_, ": the key ", in_quotes(name), " occurs twice");
    name_ = name;
  }

  size_t depth() const { return keys_.size(); }
  bool in_numbers() const {
    return depth() == 3 && !in_metadata_ && (field_ == Field::shape || field_ == Field::offsets);
  }

  bool open() {
    if (depth() == kDeepest) fail(file_, ": the header is nested more than ", kDeepest, " deep, in ", in_quotes(name_));
    keys_.emplace_back();
    return true;
  }

  bool close() {
    keys_.pop_back();
    if (depth() == 2 && field_ == Field::shape) entry_->has_shape = true;
    if (depth() == 2 && field_ == Field::offsets) entry_->has_offsets = true;
    return true;
  }

  /// A number, truth value, null or text where nothing of the kind may be, or in a field that is skipped.
  bool scalar(const std::string& came) {
    if (depth() == 0) refuse_root(came);
    if (depth() == 1) refuse_entry(came);
    refuse_unless_skipped(came);
    return true;
  }

  /// Refuses what came, unless it belongs to a field that is skipped.
  void refuse_unless_skipped(const std::string& came) const {
    if (in_metadata_) fail(file_, ": __metadata__: ", in_quotes(key_), " must be a string, came ", came);
    switch (field_) {
      case Field::dtype: fail(file_, ": tensor ", in_quotes(name_), ": dtype must be a string, came ", came);
      case Field::shape:
      case Field::offsets:
        fail(file_, ": tensor ", in_quotes(name_), ": ", field_name(),
             " must be a list of non-negative integers, came ", came, depth() > 2 ? " in it" : "");
      case Field::other: return;
    }
  }
  [[noreturn]] void refuse_root(const std::string& came) const {
    fail(file_, ": the header must be a JSON object, came ", came);
  }
  [[noreturn]] void refuse_entry(const std::string& came) const {
    fail(file_, in_metadata_ ? ": " : ": tensor ", in_metadata_ ? name_ : in_quotes(name_), " must be an object, came ",
         came);
  }

  const std::string& file_;
  RawHeader header_;
  std::vector<std::set<std::string>> keys_;  ///< seen so far, one set per open container; its size is the depth
  std::string name_, key_;                   ///< at depth 1 and 2
  RawEntry* entry_ = nullptr;
  bool in_metadata_ = false;
  bool has_metadata_ = false;
  Field field_ = Field::other;
};

}  // namespace

RawHeader parse_safetensors_json(std::string_view json, const std::string& file) {
  // The JSON reader would skip a byte order mark; the format has none.
  require(json.substr(0, 3) != "\xEF\xBB\xBF", file, ": the header starts with a byte order mark, expected '{'");
  HeaderHandler handler(file);
  Json::sax_parse(json.begin(), json.end(), &handler);
  return handler.take();
}

}  // namespace qkv

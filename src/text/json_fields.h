// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace qkv::text {

using Json = nlohmann::json;

/// The fields of one object of a tokenizer.json. Every reader throws Error when a field is missing or of another kind,
/// and done() when one was not asked for: nothing in a file goes unnoticed.
class JsonFields {
 public:
  /// `where` starts the messages: "t.json: normalizer: Strip".
  JsonFields(const Json& object, std::string where);

  const std::string& where() const { return where_; }
  /// Null counts as absent.
  bool has(const char* key) const;
  /// Present whatever it holds, null too.
  const Json& any(const char* key);

  bool boolean(const char* key);
  bool boolean(const char* key, bool otherwise) { return absent(key) ? otherwise : boolean(key); }
  std::string string(const char* key);
  std::string string(const char* key, const char* otherwise) { return absent(key) ? otherwise : string(key); }
  /// 0 ... 2^32 - 1
  uint32_t integer(const char* key);
  uint32_t integer(const char* key, uint32_t otherwise) { return absent(key) ? otherwise : integer(key); }
  /// A string of one character.
  char32_t character(const char* key);
  const Json& list(const char* key);
  const Json& object(const char* key);
  /// Read by nobody, and of no effect.
  void ignore(const char* key) { used_.insert(key); }
  void done() const;

 private:
  bool absent(const char* key);
  const Json& get(const char* key);
  [[noreturn]] void refuse(const char* key, const char* expected, const Json& came) const;

  const Json& object_;
  std::string where_;
  std::set<std::string> used_;
};

/// A value as an error message shows it, cut short.
std::string shown(const Json& value);

/// The number of `names` that is `name`; throws Error that lists them otherwise.
int choose(const std::string& name, std::initializer_list<const char*> names, const std::string& where);

}  // namespace qkv::text

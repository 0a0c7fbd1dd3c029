// SPDX-License-Identifier: Apache-2.0
#include "text/json_fields.h"

#include <limits>
#include <utility>

#include "qkv/support/error.h"
#include "tensor/text.h"
#include "text/utf8.h"

namespace qkv::text {

std::string shown(const Json& value) {
  if (value.is_string()) return in_quotes(value.get_ref<const std::string&>());
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  return value.dump();
}

JsonFields::JsonFields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
  require(object.is_object(), where_, ": expected an object, got ", shown(object));
}

bool JsonFields::has(const char* key) const {
  const auto place = object_.find(key);
  return place != object_.end() && !place->is_null();
}

const Json& JsonFields::any(const char* key) {
  used_.insert(key);
  static const Json null;
  const auto place = object_.find(key);
  return place == object_.end() ? null : *place;
}

bool JsonFields::absent(const char* key) {
  used_.insert(key);
  return !object_.contains(key);
}

const Json& JsonFields::get(const char* key) {
  used_.insert(key);
  const auto place = object_.find(key);
  require(place != object_.end(), where_, ": expected the key ", in_quotes(key), ", which is missing");
  return *place;
}

void JsonFields::refuse(const char* key, const char* expected, const Json& came) const {
  fail(where_, ": ", key, ": expected ", expected, ", got ", shown(came));
}

bool JsonFields::boolean(const char* key) {
  const Json& value = get(key);
  if (!value.is_boolean()) refuse(key, "true or false", value);
  return value.get<bool>();
}

std::string JsonFields::string(const char* key) {
  const Json& value = get(key);
  if (!value.is_string()) refuse(key, "a string", value);
  return value.get<std::string>();
}

uint32_t JsonFields::integer(const char* key) {
  const Json& value = get(key);
  const bool fits = value.is_number_unsigned() && value.get<uint64_t>() <= std::numeric_limits<uint32_t>::max();
  if (!fits) refuse(key, "an integer from 0 to 4294967295", value);
  return value.get<uint32_t>();
}

char32_t JsonFields::character(const char* key) {
  const std::string text = string(key);
  if (text.empty() || utf8_length(text[0]) != text.size()) refuse(key, "one character", text);
  return utf8_decode(text.data());
}

const Json& JsonFields::list(const char* key) {
  const Json& value = get(key);
  if (!value.is_array()) refuse(key, "a list", value);
  return value;
}

const Json& JsonFields::object(const char* key) {
  const Json& value = get(key);
  if (!value.is_object()) refuse(key, "an object", value);
  return value;
}

void JsonFields::done() const {
  for (const auto& item : object_.items()) {
    require(used_.count(item.key()) != 0, where_, ": unknown key ", in_quotes(item.key()));
  }
}

int choose(const std::string& name, std::initializer_list<const char*> names, const std::string& where) {
  int number = 0;
  std::string all;
  for (const char* known : names) {
    if (name == known) return number;
    all += (number++ == 0 ? "" : ", ") + std::string(known);
  }
  fail(where, ": expected one of ", all, ", got ", in_quotes(name));
}

}  // namespace qkv::text

// SPDX-License-Identifier: Apache-2.0
#include "models/json_file.h"

#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include "qkv/support/error.h"
#include "tensor/text.h"

namespace qkv::models {

using Json = nlohmann::json;

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw SystemError(path + ": cannot open");
  if (file.peek() == std::char_traits<char>::eof() && !file.bad()) return {};  // copying nothing would be a failure
  std::ostringstream text;
  text << file.rdbuf();
  if (file.bad() || text.fail()) throw SystemError(path + ": cannot read");
  return text.str();
}

Json parse_json(std::string_view text, const std::string& name) {
  std::vector<std::set<std::string>> keys;
  constexpr int kDeepest = 64;
  const Json::parser_callback_t check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    require(depth < kDeepest, name, ": expected at most ", kDeepest, " levels of lists and objects");
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      require(keys.back().insert(key).second, name, ": the key ", in_quotes(key), " occurs twice");
    }
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::exception& error) {
    fail(name, ": expected JSON: ", error.what());
  }
}

std::string shown(const Json& value) {
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

bool is_plain_name(std::string_view name) {
  constexpr std::string_view kNoName("/\\\0", 3);
  return !name.empty() && name.find_first_of(kNoName) == name.npos && name != "." && name != "..";
}

Json read_json(const std::string& path) { return parse_json(read_text(path), path); }

}  // namespace qkv::models

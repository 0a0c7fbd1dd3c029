// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace qkv::models {

/// The bytes of a file; throws SystemError when it cannot be read.
std::string read_text(const std::string& path);

/// The value a JSON text holds; `name` starts the messages. Throws Error for what is not JSON and for a key that occurs
/// twice in one object, of which other readers would quietly take one.
nlohmann::json parse_json(std::string_view text, const std::string& name);
nlohmann::json read_json(const std::string& path);

/// A value as messages quote it, cut where it is long.
std::string shown(const nlohmann::json& value);

/// Whether a name that a file gives for a neighbour can only be that of one: no path, not the folder or the one above.
bool is_plain_name(std::string_view name);

}  // namespace qkv::models

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace qkv {

/// Ends a text that comes in pieces where one of some stop texts begins, wherever pieces divide it. What could still be
/// the beginning of one is held back.
class StopText {
 public:
  /// Throws Error for an empty stop text.
  explicit StopText(std::vector<std::string> stops);

  /// What of the text, up to and with this piece, is now certain to come before any stop text.
  std::string add(std::string_view piece);
  /// What was held back; nothing once a stop text has come.
  std::string finish();
  /// Whether a stop text has come: the one that ends first, of those the one that begins first. All later text is
  /// dropped.
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace qkv

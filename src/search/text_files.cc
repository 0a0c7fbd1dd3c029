// SPDX-License-Identifier: Apache-2.0
#include "search/text_files.h"

#include <algorithm>
#include <cstring>

#include "qkv/support/error.h"
#include "qkv/support/random.h"
#include "text/utf8.h"

namespace qkv::search {
namespace {

namespace fs = std::filesystem;

void add_folder(const fs::path& folder, FoundFiles& found) {
  std::error_code error;
  for (fs::directory_iterator place(folder, error), end; !error && place != end; place.increment(error)) {
    const fs::directory_entry& entry = *place;
    if (entry.path().filename().native().starts_with('.')) continue;
    std::error_code unknown;  // of a link that leads nowhere, or to itself: neither a folder nor a file
    if (entry.is_directory(unknown) && !entry.is_symlink(unknown)) {
      add_folder(entry.path(), found);
    } else if (entry.is_regular_file(unknown)) {
      const fs::path file = fs::canonical(entry.path(), unknown);
      unknown ? found.unreadable.push_back(entry.path()) : found.files.push_back(file);
    }
  }
  if (error) found.unreadable.push_back(folder);
}

}  // namespace

uint64_t digest(std::string_view bytes, uint64_t seed) {
  uint64_t hash = mix64(seed ^ bytes.size());
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + at, 8);
    hash = mix64(hash ^ word);
  }
  uint64_t rest = 0;
  std::memcpy(&rest, bytes.data() + at, bytes.size() - at);
  return mix64(hash ^ rest);
}

FoundFiles find_files(const std::vector<std::string>& paths) {
  FoundFiles found;
  std::vector<fs::path>& files = found.files;
  for (const std::string& path : paths) {
    std::error_code error;
    const fs::path real = fs::canonical(path, error);
    if (error) throw SystemError(concat(path, ": ", error.message()));
    if (fs::is_directory(real)) {
      add_folder(real, found);
    } else {
      require(fs::is_regular_file(real), path, ": expected a file or a folder");
      files.push_back(real);
    }
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return found;
}

bool is_text(std::string_view bytes) {
  return bytes.find('\0') == bytes.npos && text::utf8_first_invalid(bytes) == bytes.npos;
}

}  // namespace qkv::search

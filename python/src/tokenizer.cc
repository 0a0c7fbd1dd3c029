// SPDX-License-Identifier: Apache-2.0
#include "python/src/tokenizer.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "python/src/run.h"
#include "qkv/support/error.h"
#include "qkv/support/parallel.h"
#include "qkv/text/tokenizer.h"

namespace nb = nanobind;

namespace qkv::python {
namespace {

using Ids = std::vector<uint32_t>;

/// A file, or the tokenizer.json of a folder.
Tokenizer read(const std::string& path) {
  const nb::gil_scoped_release release;
  const std::filesystem::path place(path);
  return Tokenizer::read((std::filesystem::is_directory(place) ? place / "tokenizer.json" : place).string());
}

nb::object encode(const Tokenizer& tokenizer, const std::string& text, bool special_tokens, bool offsets) {
  Encoding encoding;
  run([&] { encoding = tokenizer.encode(text, {.special_tokens = special_tokens, .offsets = offsets}); });
  if (!offsets) return nb::cast(encoding.ids);
  nb::list places;
  for (const TokenOffsets& place : encoding.offsets) places.append(nb::make_tuple(place.begin, place.end));
  return nb::make_tuple(nb::cast(encoding.ids), places);
}

std::vector<Ids> encode_batch(const Tokenizer& tokenizer, const std::vector<std::string>& texts, bool special_tokens,
                              int threads) {
  require(threads >= 0 && threads <= 4096, "threads: expected 0 (all) to 4096, got ", threads);
  std::vector<Ids> all(texts.size());
  run([&] {
    const auto count = static_cast<int64_t>(texts.size());
    if (threads == 0) threads = available_threads();
    std::vector<TokenizerWorkspace> workspaces(static_cast<size_t>(std::max(parallel_workers(count, threads), 1)));
    parallel_for(count, threads, [&](int64_t index, int worker) {
      Encoding encoding;
      tokenizer.encode(texts[static_cast<size_t>(index)], {.special_tokens = special_tokens, .offsets = false},
                       workspaces[static_cast<size_t>(worker)], encoding);
      all[static_cast<size_t>(index)] = std::move(encoding.ids);
    });
  });
  return all;
}

std::string decode(const Tokenizer& tokenizer, const Ids& ids, bool special_tokens) {
  const nb::gil_scoped_release release;
  return tokenizer.decode(ids, special_tokens);
}

}  // namespace

void add_tokenizer(nb::module_& module) {
  nb::class_<Tokenizer>(module, "Tokenizer",
                        "A tokenizer as a file tokenizer.json describes it, with the ids and offsets of the package\n"
                        "`tokenizers`. Calls may run in several threads at once, without the interpreter's lock.")
      .def_static("from_file", &read, nb::arg("path"),
                  "Reads a file, or the tokenizer.json of a folder. Raises OSError when it cannot be read, ValueError\n"
                  "for anything in it that is not supported.")
      .def("encode", &encode, nb::arg("text"), nb::kw_only(), nb::arg("special_tokens") = true,
           nb::arg("offsets") = false,
           nb::sig("def encode(self, text: str, *, special_tokens: bool = True, offsets: bool = False) -> Any"),
           "The ids of a text as a list; with offsets=True also a list of (begin, end), in code points.")
      .def("encode_batch", &encode_batch, nb::arg("texts"), nb::kw_only(), nb::arg("special_tokens") = true,
           nb::arg("threads") = 0, "The ids of several texts, a list each; in parallel.")
      .def("decode", &decode, nb::arg("ids"), nb::kw_only(), nb::arg("special_tokens") = true,
           "The text of ids. Raises ValueError for an id that is not in the vocabulary.")
      .def("id", &Tokenizer::id, nb::arg("token"), "The id of a token, or None.")
      .def("token", &Tokenizer::token, nb::arg("id"), "The token of an id, or None.")
      .def_prop_ro("id_limit", &Tokenizer::id_limit, "Ids are below this.");
}

}  // namespace qkv::python

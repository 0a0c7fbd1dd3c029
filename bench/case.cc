// SPDX-License-Identifier: Apache-2.0
#include "case.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "qkv/support/error.h"

namespace qkv::bench {
namespace {

template <class T>
T number(const std::string& text) {
  T value{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(code == std::errc() && end == text.data() + text.size(), "expected a number, got '", text, "'");
  return value;
}

int64_t size(const std::string& text) {
  const int64_t value = number<int64_t>(text);
  require(value >= 0, "expected a size, got '", text, "'");
  return value;
}

double share(const std::string& text) {
  const double value = number<double>(text);
  require(value >= 0 && value <= 1, "expected a share of 0 to 1, got '", text, "'");
  return value;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

template <class T>
T one_of(const std::string& text, const std::map<std::string, T>& known) {
  const auto found = known.find(text);
  if (found != known.end()) return found->second;
  std::string names;
  for (const auto& [name, value] : known) names += " " + name;
  fail("expected one of", names, ", got '", text, "'");
}

/// "1hqk": each of the axes b h q k is full, or 1.
std::string axes(const std::string& text) {
  const std::string full = "bhqk";
  bool good = text.size() == full.size();
  for (size_t a = 0; good && a < full.size(); ++a) good = text[a] == full[a] || text[a] == '1';
  require(good, "expected four axes such as bhqk, 1hqk or b11k, got '", text, "'");
  return text;
}

Causal causal(const std::string& text) {
  if (text == "top_left") return Causal::top_left();
  if (text == "bottom_right") return Causal::bottom_right();
  return Causal::with_offset(number<int64_t>(text));
}

Window window(const std::string& text) {
  const std::vector<std::string> sides = split(text, ',');
  require(sides.size() == 2, "expected LEFT,RIGHT, got '", text, "'");
  Window result;
  if (sides[0] != "-") result.left = number<int64_t>(sides[0]);
  if (sides[1] != "-") result.right = number<int64_t>(sides[1]);
  return result;
}

BlockShape block(const std::string& text) {
  const std::vector<std::string> sides = split(text, ',');
  require(sides.size() == 2, "expected QUERIES,KEYS, got '", text, "'");
  return {size(sides[0]), size(sides[1])};
}

const std::map<std::string, Mode> kModes = {{"forward", Mode::forward},
                                            {"backward", Mode::backward},
                                            {"both", Mode::both},
                                            {"jvp", Mode::jvp},
                                            {"second", Mode::second}};
const std::map<std::string, DType> kDTypes = {
    {"f64", DType::f64}, {"f32", DType::f32}, {"bf16", DType::bf16}, {"f16", DType::f16}};
const std::map<std::string, Layout> kLayouts = {
    {"contiguous", Layout::contiguous}, {"token_major", Layout::token_major}, {"transposed", Layout::transposed}};
const std::map<std::string, bool> kSwitch = {{"0", false}, {"1", true}};

std::vector<std::string> trainable(const std::string& text) {
  static const std::map<std::string, std::string> known = {
      {"bias", "bias"}, {"slopes", "slopes"}, {"table", "table"}, {"sinks", "sinks"}, {"scale", "scale"}};
  std::vector<std::string> names;
  for (const std::string& part : split(text, ',')) names.push_back(one_of(part, known));
  return names;
}

/// Sizes that follow another one unless they are given themselves.
struct Defaults {
  std::optional<int64_t> Hkv, Dv;
};

struct Key {
  const char* name;
  const char* help;
  std::function<void(Case&, Defaults&, const std::string&)> set;
};

// Aliases keep the table below at one line a key.
using C = Case;
using T = const std::string;

const std::vector<Key>& keys() {
  static const std::vector<Key> table = {
      {"op", "attention matmul",
       [](C& c, Defaults&, T& t) {
         c.operation = one_of<Operation>(t, {{"attention", Operation::attention}, {"matmul", Operation::matmul}});
       }},
      {"m", "rows of a matmul [m, k] by [k, n]", [](C& c, Defaults&, T& t) { c.M = size(t); }},
      {"n", "its columns", [](C& c, Defaults&, T& t) { c.N = size(t); }},
      {"k", "its inner length", [](C& c, Defaults&, T& t) { c.K = size(t); }},
      {"prepared", "1: [k, n] is packed beforehand", [](C& c, Defaults&, T& t) { c.prepared = one_of(t, kSwitch); }},
      {"columns", "1: what is [k, n] is stored [n, k]", [](C& c, Defaults&, T& t) { c.columns = one_of(t, kSwitch); }},
      {"linear", "1: with bias, gelu and residual", [](C& c, Defaults&, T& t) { c.linear = one_of(t, kSwitch); }},
      {"b", "batch entries", [](C& c, Defaults&, T& t) { c.B = size(t); }},
      {"h", "query heads", [](C& c, Defaults&, T& t) { c.H = size(t); }},
      {"hkv", "key/value heads; h unless given", [](C&, Defaults& d, T& t) { d.Hkv = size(t); }},
      {"t", "queries and keys", [](C& c, Defaults&, T& t) { c.Tq = c.Tk = size(t); }},
      {"tq", "queries", [](C& c, Defaults&, T& t) { c.Tq = size(t); }},
      {"tk", "keys", [](C& c, Defaults&, T& t) { c.Tk = size(t); }},
      {"d", "width of a query and a key", [](C& c, Defaults&, T& t) { c.D = size(t); }},
      {"dv", "width of a value; d unless given", [](C&, Defaults& d, T& t) { d.Dv = size(t); }},
      {"dtype", "f64 f32 bf16 f16", [](C& c, Defaults&, T& t) { c.dtype = one_of(t, kDTypes); }},
      {"mode", "forward, backward, both, jvp, second: a list, each timed by itself",
       [](C& c, Defaults&, T& t) {
         c.modes.clear();
         for (const std::string& part : split(t, ',')) c.modes.push_back(one_of(part, kModes));
       }},
      {"threads", "a list; 1 and all CPUs unless given",
       [](C& c, Defaults&, T& t) {
         for (const std::string& part : split(t, ',')) c.threads.push_back(number<int>(part));
       }},
      {"layout", "contiguous token_major transposed, of q k v and out",
       [](C& c, Defaults&, T& t) { c.layout = one_of(t, kLayouts); }},
      {"cached", "1: keys and values in a KeyValueCache", [](C& c, Defaults&, T& t) { c.cached = one_of(t, kSwitch); }},
      {"packed", "number of ragged sequences that tq and tk are cut into",
       [](C& c, Defaults&, T& t) { c.packed = size(t); }},
      {"scale", "number", [](C& c, Defaults&, T& t) { c.scale = number<double>(t); }},
      {"softcap", "number", [](C& c, Defaults&, T& t) { c.softcap = number<double>(t); }},
      {"causal", "top_left bottom_right or an offset", [](C& c, Defaults&, T& t) { c.causal = causal(t); }},
      {"window", "LEFT,RIGHT; '-' is unbounded", [](C& c, Defaults&, T& t) { c.window = window(t); }},
      {"offset", "key position of query 0, without causal",
       [](C& c, Defaults&, T& t) { c.offset = number<int64_t>(t); }},
      {"dropout", "probability", [](C& c, Defaults&, T& t) { c.dropout = number<double>(t); }},
      {"bias", "full axes, such as bhqk 1hqk b11k", [](C& c, Defaults&, T& t) { c.bias = axes(t); }},
      {"mask", "full axes of a random boolean mask", [](C& c, Defaults&, T& t) { c.mask = axes(t); }},
      {"mask_share", "share of the mask that is visible", [](C& c, Defaults&, T& t) { c.mask_share = share(t); }},
      {"mask_tile", "side of the tiles the mask shows or hides", [](C& c, Defaults&, T& t) { c.mask_tile = size(t); }},
      {"alibi", "1: slopes", [](C& c, Defaults&, T& t) { c.alibi = one_of(t, kSwitch); }},
      {"sinks", "1: sinks", [](C& c, Defaults&, T& t) { c.sinks = one_of(t, kSwitch); }},
      {"table", "buckets of a relative table", [](C& c, Defaults&, T& t) { c.table = size(t); }},
      {"buckets", "bidirectional causal",
       [](C& c, Defaults&, T& t) {
         c.buckets.kind = one_of<Buckets::Kind>(
             t, {{"bidirectional", Buckets::Kind::bidirectional}, {"causal", Buckets::Kind::causal}});
       }},
      {"max_distance", "of the table", [](C& c, Defaults&, T& t) { c.buckets.max_distance = size(t); }},
      {"segments", "documents in each row of the batch", [](C& c, Defaults&, T& t) { c.segments = size(t); }},
      {"key_lengths", "share of the keys the shortest batch entry has; the others lie between it and 1",
       [](C& c, Defaults&, T& t) { c.key_lengths = share(t); }},
      {"query_lengths", "the same for queries", [](C& c, Defaults&, T& t) { c.query_lengths = share(t); }},
      {"block", "QUERIES,KEYS: sides of a block mask's blocks", [](C& c, Defaults&, T& t) { c.block = block(t); }},
      {"block_share", "share of listed blocks; the diagonal always is",
       [](C& c, Defaults&, T& t) { c.block_share = share(t); }},
      {"trainable", "which of bias slopes table sinks scale want a gradient",
       [](C& c, Defaults&, T& t) { c.trainable = trainable(t); }},
      {"against", "the case it is compared with", [](C& c, Defaults&, T& t) { c.against = t; }},
  };
  return table;
}

Case parse(const std::string& line) {
  std::istringstream words(line);
  Case result;
  Defaults defaults;
  result.line = line;
  words >> result.name;
  for (std::string word; words >> word;) {
    const size_t equal = word.find('=');
    require(equal != std::string::npos, "expected key=value, got '", word, "'");
    const std::string key = word.substr(0, equal);
    const auto found = std::find_if(keys().begin(), keys().end(), [&](const Key& k) { return key == k.name; });
    require(found != keys().end(), "unknown key '", key, "'");
    try {
      found->set(result, defaults, word.substr(equal + 1));
    } catch (const Error& error) {
      fail(key, ": ", error.what());
    }
    result.keys[key] = word.substr(equal + 1);
  }
  result.Hkv = defaults.Hkv.value_or(result.H);
  result.Dv = defaults.Dv.value_or(result.D);
  require(result.packed == 0 || result.layout == Layout::contiguous, "packed: has one layout only");
  require(result.operation == Operation::attention || (!result.has_mode(Mode::jvp) && !result.has_mode(Mode::second)),
          "mode: jvp and second are attention's");
  require(!result.modes.empty(), "mode: expected at least one");
  require(!result.cached || (result.packed == 0 && result.modes == std::vector<Mode>{Mode::forward}),
          "cached: forward alone, and no packed sequences");
  require(!result.columns || result.modes == std::vector<Mode>{Mode::forward}, "columns: forward alone");
  return result;
}

}  // namespace

std::string name(Mode mode) {
  for (const auto& [text, value] : kModes) {
    if (value == mode) return text;
  }
  return "";
}

bool Case::has_mode(Mode mode) const { return std::find(modes.begin(), modes.end(), mode) != modes.end(); }

bool Case::trains(const std::string& what) const {
  return std::find(trainable.begin(), trainable.end(), what) != trainable.end();
}

std::vector<Case> read_cases(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw SystemError(concat("bench: cannot read ", path));
  std::vector<Case> cases;
  std::set<std::string> names;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    line.erase(std::find(line.begin(), line.end(), '#'), line.end());
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      cases.push_back(parse(line));
      require(names.insert(cases.back().name).second, "a second case named ", cases.back().name);
    } catch (const Error& error) {
      fail("bench: ", path, ":", number, ": ", error.what());
    }
  }
  for (const Case& one : cases) {
    require(one.against.empty() || names.count(one.against) == 1, "bench: ", path, ": ", one.name, " is compared with ",
            one.against, ", which is not in the file");
  }
  return cases;
}

std::string case_help() {
  std::ostringstream text;
  text << "A case is one line: NAME key=value ...   ('#' begins a comment)\n";
  for (const Key& key : keys())
    text << "  " << key.name << std::string(15 - std::string(key.name).size(), ' ') << key.help << '\n';
  return text.str();
}

}  // namespace qkv::bench

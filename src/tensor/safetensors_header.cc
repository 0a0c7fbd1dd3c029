// SPDX-License-Identifier: Apache-2.0
#include "tensor/safetensors_header.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <ostream>
#include <vector>

#include "qkv/support/error.h"
#include "tensor/safetensors_json.h"
#include "tensor/text.h"

namespace qkv {
namespace {

constexpr uint64_t kLongestHeader = 100'000'000;  // the reference reader's limit
constexpr size_t kLengthBytes = 8;

struct FormatName {
  const char* name;
  DType dtype;
};
constexpr FormatName kFormatNames[] = {{"F64", DType::f64}, {"F32", DType::f32},      {"BF16", DType::bf16},
                                       {"F16", DType::f16}, {"BOOL", DType::boolean}, {"U8", DType::u8},
                                       {"I32", DType::i32}, {"I64", DType::i64}};

const char* format_name(DType dtype) {
  for (const FormatName& known : kFormatNames) {
    if (known.dtype == dtype) return known.name;
  }
  return "";
}

/// How a message about a tensor begins. Put together only when there is one: a header may name millions.
struct Where {
  const std::string& file;
  const std::string& name;
  friend std::ostream& operator<<(std::ostream& text, const Where& where) {
    return text << where.file << ": tensor " << in_quotes(where.name);
  }
};

DType dtype_of(const RawEntry& raw, const Where& where) {
  for (const FormatName& known : kFormatNames) {
    if (raw.dtype == known.name) return known.dtype;
  }
  fail(where, ": has dtype ", in_quotes(raw.dtype), ", expected one of F64 F32 BF16 F16 BOOL U8 I32 I64");
}

/// Shape, dtype and offsets of one tensor against each other and against the size of the data.
SafetensorsEntry check_entry(const RawEntry& raw, uint64_t data_size, const Where& where) {
  require(raw.has_dtype, where, ": has no dtype");
  require(raw.has_shape, where, ": has no shape");
  require(raw.has_offsets, where, ": has no data_offsets");
  require(raw.offsets.size() == 2, where, ": data_offsets has ", raw.offsets.size(), " numbers, expected 2");
  SafetensorsEntry entry;
  entry.dtype = dtype_of(raw, where);
  require(raw.shape.size() <= static_cast<size_t>(Dims::kMaxRank), where, ": shape has ", raw.shape.size(),
          " dimensions, qkv holds at most ", Dims::kMaxRank);
  int64_t needed = size_of(entry.dtype);
  bool fits = true;
  for (const uint64_t size : raw.shape) {
    require(size <= static_cast<uint64_t>(INT64_MAX), where, ": shape has the size ", size,
            ", which does not fit 64 bits");
    entry.shape.push_back(static_cast<int64_t>(size));
    fits = fits && !__builtin_mul_overflow(needed, entry.shape[entry.shape.rank() - 1], &needed);
  }
  const bool empty = std::find(raw.shape.begin(), raw.shape.end(), 0u) != raw.shape.end();
  if (!fits && !empty) fail(where, ": the bytes of shape ", entry.shape, " do not fit 64 bits");
  if (empty) needed = 0;
  const uint64_t begin = raw.offsets[0], end = raw.offsets[1];
  require(begin <= end, where, ": data_offsets [", begin, ", ", end, "] run backwards");
  require(end <= data_size, where, ": data_offsets end at ", end, ", the data has ", data_size, " bytes");
  if (end - begin != static_cast<uint64_t>(needed)) {
    fail(where, ": shape ", entry.shape, " of ", raw.dtype, " needs ", needed, " bytes, data_offsets [", begin, ", ",
         end, "] give ", end - begin);
  }
  entry.begin = static_cast<size_t>(begin);
  return entry;
}

struct Range {
  uint64_t begin, end;
  const std::string* name;
};

/// Neither holes nor overlap, nor bytes after the last tensor.
void check_tiling(std::vector<Range>& ranges, uint64_t data_size, const std::string& file) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin != b.begin ? a.begin < b.begin : a.end < b.end; });
  uint64_t covered = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const Range& range = ranges[i];
    if (range.begin < covered) {
      fail(file, ": tensor ", in_quotes(*range.name), " begins at ", range.begin, " inside tensor ",
           in_quotes(*ranges[i - 1].name), ", which ends at ", covered);
    }
    if (range.begin > covered) {
      fail(file, ": tensor ", in_quotes(*range.name), " begins at ", range.begin,
           ", but the data is described only up to ", covered);
    }
    covered = range.end;
  }
  require(covered == data_size, file, ": the tensors end at ", covered, ", the data has ", data_size, " bytes");
}

void require_name(const std::string& name, const std::string& file) {
  require(name.find('\0') == std::string::npos, file, ": the name ", in_quotes(name), " contains NUL");
}

/// Quoted and escaped; throws Error for text that is not UTF-8.
std::string json_string(const std::string& text, const std::string& file) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    fail(file, ": ", in_quotes(text), " is not UTF-8");
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(const char* bytes, size_t size, const std::string& file) {
  require(size >= kLengthBytes, file, ": is not a .safetensors file: it has ", size, " bytes, expected at least 8");
  uint64_t length = 0;
  std::memcpy(&length, bytes, kLengthBytes);
  require(length <= kLongestHeader, file, ": says its header has ", length, " bytes, at most ", kLongestHeader,
          " are read");
  require(length <= size - kLengthBytes, file, ": says its header has ", length, " bytes, but only ",
          size - kLengthBytes, " follow");
  const uint64_t data_size = size - kLengthBytes - length;
  RawHeader raw = parse_safetensors_json({bytes + kLengthBytes, static_cast<size_t>(length)}, file);

  SafetensorsHeader header;
  header.metadata = std::move(raw.metadata);
  std::vector<Range> ranges;
  for (const auto& [name, entry] : raw.tensors) {
    SafetensorsEntry checked = check_entry(entry, data_size, Where{file, name});
    ranges.push_back({entry.offsets[0], entry.offsets[1], &name});
    checked.begin += kLengthBytes + static_cast<size_t>(length);
    header.tensors.emplace_hint(header.tensors.end(), name, checked);
  }
  check_tiling(ranges, data_size, file);
  return header;
}

std::vector<std::string> safetensors_order(const std::map<std::string, TensorView>& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, view] : tensors) names.push_back(name);
  std::stable_sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return size_of(tensors.at(a).dtype()) > size_of(tensors.at(b).dtype());
  });
  return names;
}

std::string safetensors_preamble(const std::map<std::string, TensorView>& tensors,
                                 const std::map<std::string, std::string>& metadata, const std::string& file) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      require_name(key, file);
      json += json_string(key, file) + ":" + json_string(value, file) + ",";
    }
    json.back() = '}';
    json += ',';
  }
  int64_t offset = 0;
  for (const std::string& name : safetensors_order(tensors)) {
    const TensorView& view = tensors.at(name);
    require_name(name, file);
    require(name != "__metadata__", file, ": __metadata__ cannot be the name of a tensor");
    require(static_cast<bool>(view), file, ": tensor ", in_quotes(name), " is absent");
    const int64_t end = offset + view.elements() * size_of(view.dtype());
    json += json_string(name, file) + concat(":{\"dtype\":\"", format_name(view.dtype()), "\",\"shape\":[");
    for (int axis = 0; axis < view.rank(); ++axis) json += concat(axis == 0 ? "" : ",", view.size(axis));
    json += concat("],\"data_offsets\":[", offset, ",", end, "]},");
    offset = end;
  }
  if (json.back() == ',') json.pop_back();
  json += '}';
  json.append((8 - json.size() % 8) % 8, ' ');
  require(json.size() <= kLongestHeader, file, ": the header would have ", json.size(), " bytes, at most ",
          kLongestHeader, " are read back");
  const uint64_t length = json.size();
  return std::string(reinterpret_cast<const char*>(&length), kLengthBytes) + json;
}

}  // namespace qkv

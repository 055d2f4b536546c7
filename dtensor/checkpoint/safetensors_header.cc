#include "dtensor/checkpoint/safetensors_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"
#include "runtime/data/utf8.h"

namespace weft {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

using OrderedJson = nlohmann::ordered_json;  // to write: it looks through all names for each that it reads
using Json = nlohmann::json;

// A header is some hundred bytes per tensor; more than this is not a header, and is not written.
constexpr int64_t kMaxHeaderBytes = int64_t{100} << 20;

struct DTypeText {
  DType dtype;
  const char* text;
};
constexpr std::array<DTypeText, 8> kDTypeTexts = {{{DType::kF32, "F32"},
                                                   {DType::kF64, "F64"},
                                                   {DType::kBF16, "BF16"},
                                                   {DType::kF16, "F16"},
                                                   {DType::kI32, "I32"},
                                                   {DType::kI64, "I64"},
                                                   {DType::kU8, "U8"},
                                                   {DType::kBool, "BOOL"}}};

// Those of the format that Weft lacks.
struct OtherDType {
  const char* text;
  int num_bits;
};
constexpr std::array<OtherDType, 12> kOtherDTypes = {{{"F4", 4},
                                                      {"F6_E2M3", 6},
                                                      {"F6_E3M2", 6},
                                                      {"F8_E4M3", 8},
                                                      {"F8_E5M2", 8},
                                                      {"F8_E8M0", 8},
                                                      {"I8", 8},
                                                      {"I16", 16},
                                                      {"U16", 16},
                                                      {"U32", 32},
                                                      {"U64", 64},
                                                      {"C64", 64}}};

const OtherDType* FindOther(absl::string_view text) {
  const auto* const found = std::find_if(kOtherDTypes.begin(), kOtherDTypes.end(),
                                         [&](const OtherDType& other) { return other.text == text; });
  return found == kOtherDTypes.end() ? nullptr : found;
}

template <class... Parts>
[[noreturn]] void ThrowBroken(const std::string& path, const Parts&... parts) {
  Throw(absl::StatusCode::kDataLoss, "'", path, "' is not a whole safetensors file: ", parts...);
}

int64_t CheckedProduct(const std::string& path, int64_t unit, const std::vector<int64_t>& extents) {
  if (extents.size() > Shape::kMaxDims) {
    ThrowBroken(path, "a tensor has at most ", Shape::kMaxDims, " dims, one has ", extents.size());
  }
  int64_t count = unit;
  bool is_empty = false;
  for (const int64_t extent : extents) {
    is_empty = is_empty || extent == 0;
    const bool fits = extent >= 0 && (extent == 0 || !__builtin_mul_overflow(count, extent, &count));
    if (!fits) ThrowBroken(path, "a tensor has an extent of ", extent, ", which is negative or too large");
  }
  return is_empty ? 0 : count;
}

struct Item {
  SafetensorsEntry entry;
  SafetensorsRange range;
  int64_t num_bytes = 0;    // by its type
  std::string other_dtype;  // if it is none of Weft's: that of `entry` says nothing then
};

std::string TypeText(const Item& item) {
  if (item.other_dtype.empty()) return item.entry.type.ToString();
  return absl::StrCat(item.other_dtype, item.entry.type.shape.ToString());
}

Item ItemOf(const std::string& path, const std::string& name, const Json& json) {
  Item item;
  const auto dtype = json.at("dtype").get<std::string>();
  const auto extents = json.at("shape").get<std::vector<int64_t>>();
  if (const OtherDType* const other = FindOther(dtype)) {
    item.other_dtype = dtype;
    item.num_bytes = CheckedProduct(path, other->num_bits, extents) / 8;
  } else {
    item.entry.type.dtype = ParseSafetensorsDType(path, dtype);
    item.num_bytes = CheckedNumBytes(path, item.entry.type.dtype, extents);
  }
  item.entry.name = name;
  item.entry.type.shape = Shape(extents);
  const auto offsets = json.at("data_offsets").get<std::array<int64_t, 2>>();
  item.range = {offsets[0], offsets[1]};
  return item;
}

std::vector<Item> ItemsOf(const std::string& path, const Json& header, SafetensorsMetadata* metadata) {
  std::vector<Item> items;
  try {
    for (const auto& [name, value] : header.items()) {
      if (name == "__metadata__") {
        *metadata = value.get<SafetensorsMetadata>();
        continue;
      }
      items.push_back(ItemOf(path, name, value));
    }
  } catch (const Json::exception& error) {
    ThrowBroken(path, "its header lacks a field or has one of the wrong type: ", error.what());
  }
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return std::pair(a.range.begin, a.range.end) < std::pair(b.range.begin, b.range.end);
  });
  return items;
}

SafetensorsHeader Parse(const std::string& path, const std::string& text, int64_t data_bytes) {
  const Json header = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (header.is_discarded() || !header.is_object()) ThrowBroken(path, "its header is not a JSON object");
  SafetensorsHeader result;
  int64_t expected = 0;
  for (const Item& item : ItemsOf(path, header, &result.metadata)) {
    if (item.range.begin != expected || item.range.end < expected ||
        item.range.end - expected != item.num_bytes) {
      ThrowBroken(path, "tensor '", item.entry.name, "', ", TypeText(item), ", cannot lie in bytes ",
                  item.range.begin, " to ", item.range.end, " (expected to start at ", expected, ")");
    }
    expected = item.range.end;
    if (!item.other_dtype.empty()) {
      result.skipped[item.entry.name] = item.other_dtype;
      continue;
    }
    result.numbers[item.entry.name] = static_cast<int>(result.entries.size());
    result.entries.push_back(item.entry);
    result.ranges.push_back(item.range);
  }
  if (expected != data_bytes) ThrowBroken(path, "its tensors take ", expected, " bytes, it has ", data_bytes);
  return result;
}

}  // namespace

int SafetensorsHeader::Find(absl::string_view name) const {
  const auto found = numbers.find(std::string(name));
  return found == numbers.end() ? -1 : found->second;
}

std::string FormatSafetensorsHeader(const std::string& path, const std::vector<SafetensorsEntry>& entries,
                                    const SafetensorsMetadata& metadata) {
  constexpr char kNotUtf8[] = " is not UTF-8, which alone a header holds";
  for (const auto& [name, text] : metadata) {
    WEFT_REQUIRE(IsUtf8(name), "checkpoint '", path, "': the name of text '", PrintableText(name), "'",
                 kNotUtf8);
    WEFT_REQUIRE(IsUtf8(text), "checkpoint '", path, "': text '", name, "'", kNotUtf8);
  }
  OrderedJson header = OrderedJson::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  std::map<absl::string_view, bool> known;  // push_back looks for none
  for (const SafetensorsEntry& entry : entries) {
    WEFT_REQUIRE(IsUtf8(entry.name), "checkpoint '", path, "': the name of tensor '",
                 PrintableText(entry.name), "'", kNotUtf8);
    WEFT_REQUIRE(known.emplace(entry.name, true).second && entry.name != "__metadata__", "checkpoint '", path,
                 "': tensor '", entry.name, "' stands twice");
    const int64_t end = offset + entry.type.shape.num_elements() * ItemSize(entry.type.dtype);
    header.push_back({entry.name,
                      {{"dtype", SafetensorsDType(entry.type.dtype)},
                       {"shape", std::vector<int64_t>(entry.type.shape.begin(), entry.type.shape.end())},
                       {"data_offsets", {offset, end}}}});
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // elements start aligned
  WEFT_REQUIRE(std::ssize(text) <= kMaxHeaderBytes, "checkpoint '", path, "': a header of ", text.size(),
               " bytes, of names and texts; expected at most ", kMaxHeaderBytes, ", which can be read");
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
}

SafetensorsHeader ReadSafetensorsHeader(FileReader& file, uint32_t* crc32c) {
  const std::string& path = file.path();
  uint64_t length = 0;
  if (file.num_bytes() < 8) {
    ThrowBroken(path, "it has ", file.num_bytes(), " bytes, the shortest has 10");
  }
  ReadAll(file, 0, &length, sizeof(length));
  if (length > static_cast<uint64_t>(std::min(kMaxHeaderBytes, file.num_bytes() - 8))) {
    ThrowBroken(path, "its header would be ", length, " bytes long; the file has ", file.num_bytes());
  }
  std::string text(length, '\0');
  ReadAll(file, 8, text.data(), static_cast<int64_t>(length));
  const int64_t data_offset = 8 + static_cast<int64_t>(length);
  if (crc32c != nullptr) {
    *crc32c = Crc32c(text.data(), static_cast<int64_t>(length), Crc32c(&length, sizeof(length)));
  }
  SafetensorsHeader header = Parse(path, text, file.num_bytes() - data_offset);
  header.data_offset = data_offset;
  return header;
}

const char* SafetensorsDType(DType dtype) {
  return std::find_if(kDTypeTexts.begin(), kDTypeTexts.end(),
                      [&](const DTypeText& t) { return t.dtype == dtype; })
      ->text;
}

DType ParseSafetensorsDType(const std::string& path, absl::string_view text) {
  const auto* const known = std::find_if(kDTypeTexts.begin(), kDTypeTexts.end(),
                                         [&](const DTypeText& candidate) { return candidate.text == text; });
  if (known != kDTypeTexts.end()) return known->dtype;
  if (FindOther(text) == nullptr) ThrowBroken(path, "a tensor has the unknown dtype ", text);
  ThrowLacksDType(path, "a tensor", text);
}

void ThrowLacksDType(const std::string& path, const std::string& what, absl::string_view dtype) {
  std::vector<absl::string_view> known;
  for (const DTypeText& candidate : kDTypeTexts) known.push_back(candidate.text);
  Throw(absl::StatusCode::kUnimplemented, "'", path, "': ", what, " has the dtype ", dtype,
        ", which Weft lacks; expected one of ", absl::StrJoin(known, ", "));
}

int64_t CheckedNumBytes(const std::string& path, DType dtype, const std::vector<int64_t>& extents) {
  return CheckedProduct(path, ItemSize(dtype), extents);
}

}  // namespace weft

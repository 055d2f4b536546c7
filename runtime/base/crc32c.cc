#include "runtime/base/crc32c.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "isa-l/crc.h"
#include "isa-l/crc64.h"

namespace weft {
namespace {

// ISA-L takes the length as an int: bytes go in by parts below 2 GiB.
constexpr int64_t kPart = int64_t{1} << 30;

std::optional<uint64_t> ParseHex(absl::string_view text, size_t digits) {
  if (text.size() != digits) return std::nullopt;
  uint64_t value = 0;
  for (const char c : text) {
    const bool is_digit = c >= '0' && c <= '9', is_letter = c >= 'a' && c <= 'f';
    if (!is_digit && !is_letter) return std::nullopt;
    value = value << 4 | static_cast<uint64_t>(is_digit ? c - '0' : c - 'a' + 10);
  }
  return value;
}

}  // namespace

uint32_t Crc32c(const void* data, int64_t num_bytes, uint32_t before) {
  // ISA-L's starts at ~0 and leaves the last inversion to its caller.
  uint32_t state = ~before;
  auto* next = const_cast<unsigned char*>(static_cast<const unsigned char*>(data));
  for (int64_t left = num_bytes; left > 0;) {
    const int64_t part = std::min(left, kPart);
    state = crc32_iscsi(next, static_cast<int>(part), state);
    next += part;
    left -= part;
  }
  return ~state;
}

uint32_t Crc32c(absl::string_view text) { return Crc32c(text.data(), static_cast<int64_t>(text.size())); }

uint64_t Crc64(const void* data, int64_t num_bytes, uint64_t before) {
  if (num_bytes <= 0) return before;
  return crc64_ecma_refl(before, static_cast<const unsigned char*>(data), static_cast<uint64_t>(num_bytes));
}

std::string CrcText(uint32_t crc) { return absl::StrFormat("%08x", crc); }
std::string CrcText(uint64_t crc) { return absl::StrFormat("%016x", crc); }

std::optional<uint32_t> ParseCrc32(absl::string_view text) {
  const std::optional<uint64_t> value = ParseHex(text, 8);
  return value ? std::optional<uint32_t>(static_cast<uint32_t>(*value)) : std::nullopt;
}
std::optional<uint64_t> ParseCrc64(absl::string_view text) { return ParseHex(text, 16); }

}  // namespace weft

// Checksums of files: CRC-32C, and a CRC of 64 bits beside it.

#ifndef WEFT_RUNTIME_BASE_CRC32C_H_
#define WEFT_RUNTIME_BASE_CRC32C_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace weft {

// The CRC-32C (Castagnoli) of `num_bytes` bytes; of what has the CRC `before` and then these bytes. "123456789" gives
// e3069283.
// Cost:   one read of the bytes, by the processor's own instructions where it has them (ISA-L).
// Source: RFC 3720, appendix B.4.
uint32_t Crc32c(const void* data, int64_t num_bytes, uint32_t before = 0);
uint32_t Crc32c(absl::string_view text);

// The CRC-64 of ECMA-182, reflected (that of xz): beside the other, for bytes that are taken to be equal where both
// sums are. "123456789" gives 995dc9bbdf1939fa.
uint64_t Crc64(const void* data, int64_t num_bytes, uint64_t before = 0);

// As files hold them: 8 or 16 hexadecimal digits, in lower case.
std::string CrcText(uint32_t crc);
std::string CrcText(uint64_t crc);
// The inverse; nothing for any other text.
std::optional<uint32_t> ParseCrc32(absl::string_view text);
std::optional<uint64_t> ParseCrc64(absl::string_view text);

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_CRC32C_H_

// The header of a safetensors file: what lies where in it.

#ifndef WEFT_DTENSOR_CHECKPOINT_SAFETENSORS_HEADER_H_
#define WEFT_DTENSOR_CHECKPOINT_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "dtensor/checkpoint/files/files.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// Texts that travel with the tensors.
using SafetensorsMetadata = std::map<std::string, std::string>;

struct SafetensorsEntry {
  std::string name;
  TensorType type;

  bool operator==(const SafetensorsEntry&) const = default;
};

// Which bytes, counted from the end of the header.
struct SafetensorsRange {
  int64_t begin = 0;
  int64_t end = 0;

  bool operator==(const SafetensorsRange&) const = default;
};

struct SafetensorsHeader {
  SafetensorsMetadata metadata;
  std::vector<SafetensorsEntry> entries;  // in the order of the elements; those that have none there, by name
  std::vector<SafetensorsRange> ranges;   // of each entry; no gaps, but where tensors are skipped
  std::map<std::string, int> numbers;     // of the entries, by name
  // Tensors of dtypes that the format has and Weft lacks: what the format calls them, by name.
  std::map<std::string, std::string> skipped;
  int64_t data_offset = 0;  // the header's own bytes, length and all

  // The number of the entry of that name, or -1.
  int Find(absl::string_view name) const;

  bool operator==(const SafetensorsHeader&) const = default;
};

// The bytes that a file of these tensors begins with, in this order and without gaps, up to its first element.
// Errors: InvalidArgument naming `path`, if a name stands twice, a name or a text is not UTF-8, or the header is longer than what
//         is read, 100 MiB.
std::string FormatSafetensorsHeader(const std::string& path, const std::vector<SafetensorsEntry>& entries,
                                    const SafetensorsMetadata& metadata);

// Reads it. `crc32c`: if given, the checksum of the header's bytes is left there.
// Cost:   grows little faster than the header is long.
// Errors: DataLoss that names the path and what is broken: a header that does not parse, ranges that overlap or leave
//         the file, sizes that are not the shapes', a dtype that the format lacks; those of the file.
SafetensorsHeader ReadSafetensorsHeader(FileReader& file, uint32_t* crc32c = nullptr);

// "F32", "BF16": how the format writes a dtype.
const char* SafetensorsDType(DType dtype);
// Errors: they begin with `path`: Unimplemented for a dtype of the format that Weft lacks; DataLoss for any other text.
DType ParseSafetensorsDType(const std::string& path, absl::string_view text);
// Errors: that Unimplemented, always, of `what`: "tensor 'a'".
[[noreturn]] void ThrowLacksDType(const std::string& path, const std::string& what, absl::string_view dtype);

// The bytes of a tensor of these extents.
// Errors: DataLoss that begins with `path`, if there are more than 8, one is negative, or the product is too large.
int64_t CheckedNumBytes(const std::string& path, DType dtype, const std::vector<int64_t>& extents);

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_SAFETENSORS_HEADER_H_

#include "runtime/data/idx_file.h"

#include "runtime/base/error.h"
#include "runtime/base/whole_file.h"

namespace weft {

IdxArray ReadIdxFile(const std::string& path) {
  const std::string bytes = ReadWholeFile(path);
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  if (bytes.size() >= 2 && at(0) == 0x1f && at(1) == 0x8b) {
    Throw(absl::StatusCode::kDataLoss, "'", path, "' is packed: unpack it with gzip --decompress");
  }
  if (bytes.size() < 4 || at(0) != 0 || at(1) != 0 || at(2) != 8) {
    Throw(absl::StatusCode::kDataLoss, "'", path, "' is no IDX file of unsigned bytes");
  }
  const size_t num_dims = at(3);
  const size_t header = 4 + 4 * num_dims;
  if (bytes.size() < header) {
    Throw(absl::StatusCode::kDataLoss, "'", path, "' ends within its header: expected ", header,
          " bytes, got ", bytes.size());
  }
  IdxArray array;
  uint64_t count = 1;
  for (size_t dim = 0; dim < num_dims; ++dim) {
    uint32_t extent = 0;
    for (size_t i = 0; i < 4; ++i) extent = extent << 8 | at(4 + 4 * dim + i);
    array.extents.push_back(extent);
    // No file is larger than 2^63 bytes: a product beyond it is no extent of one.
    count = extent != 0 && count > (uint64_t{1} << 62) / extent ? uint64_t{1} << 62 : count * extent;
  }
  if (bytes.size() - header != count) {
    Throw(absl::StatusCode::kDataLoss, "'", path, "' has ", bytes.size() - header,
          " values, its extents say ", count);
  }
  array.values.assign(bytes.begin() + static_cast<std::ptrdiff_t>(header), bytes.end());
  return array;
}

}  // namespace weft

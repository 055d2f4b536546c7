// Files in the IDX format, in which MNIST and its successors come.

#ifndef WEFT_RUNTIME_DATA_IDX_FILE_H_
#define WEFT_RUNTIME_DATA_IDX_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace weft {

// Bytes with extents, row-major. A value.
struct IdxArray {
  std::vector<int64_t> extents;
  std::vector<uint8_t> values;

  bool operator==(const IdxArray&) const = default;
};

// Reads a file of unsigned bytes: two bytes of 0, the type 8, the number of dims, each extent as four bytes, the highest
// first, then the values.
// Errors: as ReadWholeFile; DataLoss that names the path and what is broken. A file that is packed (.gz) is said to be so.
IdxArray ReadIdxFile(const std::string& path);

}  // namespace weft

#endif  // WEFT_RUNTIME_DATA_IDX_FILE_H_

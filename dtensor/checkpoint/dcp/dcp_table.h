// The table of a distributed checkpoint of PyTorch's: its file `.metadata`.

#ifndef WEFT_DTENSOR_CHECKPOINT_DCP_DCP_TABLE_H_
#define WEFT_DTENSOR_CHECKPOINT_DCP_DCP_TABLE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "dtensor/checkpoint/dcp/pickle.h"
#include "mesh/redistribution/region.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// An archive in a file of the folder.
struct DcpPlace {
  std::string file;
  int64_t offset = 0;
  int64_t num_bytes = 0;

  bool operator==(const DcpPlace&) const = default;
};

struct DcpPiece {
  Region region;
  DcpPlace place;
};
struct DcpTensor {
  TensorType type;
  std::vector<DcpPiece> pieces;  // those with elements, in the order of their offsets
};

// What a folder holds, by name.
struct DcpTable {
  std::map<std::string, DcpTensor> tensors;
  std::map<std::string, DcpPlace> objects;  // pickles of anything else
};

// Reads the bytes of `.metadata`.
// Errors: DataLoss that begins with `path` and names what is broken; Unimplemented for classes that a table of tensors
//         does not need, dtypes that Weft lacks, and transformed files.
DcpTable ReadDcpTable(const std::string& path, absl::string_view bytes);

// A tuple of numbers, or a torch.Size of one, as extents, whose product is at most 2^56, or as strides; a number.
// Errors: DataLoss that begins with `path`.
Shape DcpExtents(const std::string& path, const PickleValue& value);
Shape DcpStrides(const std::string& path, const PickleValue& value);
int64_t DcpInt(const std::string& path, const PickleValue& value);

// "FloatStorage": how PyTorch calls memory of a dtype.
const char* DcpStorageName(DType dtype);

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_DCP_DCP_TABLE_H_

// The elements of a box, out of a file that holds another.

#ifndef WEFT_DTENSOR_CHECKPOINT_BOX_READ_H_
#define WEFT_DTENSOR_CHECKPOINT_BOX_READ_H_

#include <cstdint>
#include <optional>

#include "dtensor/checkpoint/files/files.h"
#include "mesh/redistribution/region.h"

namespace weft {

// Elements of a tensor, row-major in a file.
struct StoredBox {
  Region region;  // of the whole tensor
  int64_t file_offset = 0;
  int64_t item_size = 1;
};

// Reads what `stored` and `wanted` share into `out`, which has the elements of `wanted`, row-major. Returns the
// CRC-32C of the stored box where all of it is wanted, otherwise nothing.
//
// Cost:   only what is wanted is read, but that runs of elements which lie near each other are read by one call,
//         with what is between them.
// Errors: those of the file.
std::optional<uint32_t> ReadShared(FileReader& file, const StoredBox& stored, const Region& wanted,
                                   char* out);

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_BOX_READ_H_

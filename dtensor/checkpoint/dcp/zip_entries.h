// Where the files of a zip archive lie.

#ifndef WEFT_DTENSOR_CHECKPOINT_DCP_ZIP_ENTRIES_H_
#define WEFT_DTENSOR_CHECKPOINT_DCP_ZIP_ENTRIES_H_

#include <cstdint>
#include <map>
#include <string>

#include "dtensor/checkpoint/files/files.h"

namespace weft {

// A file of an archive, as it is: torch.save compresses nothing.
struct ZipEntry {
  int64_t offset = 0;  // of its first byte in the file that holds the archive
  int64_t num_bytes = 0;

  bool operator==(const ZipEntry&) const = default;
};

// The files of the archive in bytes [offset, offset + num_bytes) of `file`, by name.
// Errors: DataLoss that names the file, for what is no whole archive; Unimplemented for a compressed one.
// Source: PKWARE's APPNOTE.TXT, 4.3 and 4.5.3.
std::map<std::string, ZipEntry> ReadZipEntries(FileReader& file, int64_t offset, int64_t num_bytes);

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_DCP_ZIP_ENTRIES_H_

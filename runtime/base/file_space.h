// The space of a file, got before it is written.

#ifndef WEFT_RUNTIME_BASE_FILE_SPACE_H_
#define WEFT_RUNTIME_BASE_FILE_SPACE_H_

#include <cstdint>

namespace weft {

// Gets the space for these bytes of the file, on its disk or in its memory, so that writing them to mapped memory cannot fail; the
// file grows where it ends before. Signals do not keep it from that. Returns 0, or the system's error.
int GetFileSpace(int descriptor, int64_t offset, int64_t num_bytes);

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_FILE_SPACE_H_

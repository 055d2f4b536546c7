#ifndef WEFT_RUNTIME_BASE_ERROR_FILE_H_
#define WEFT_RUNTIME_BASE_ERROR_FILE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace weft {

// The file in which a process tells its launcher why it has failed: weft_run and torchrun name one for each worker
// (TORCHELASTIC_ERROR_FILE), and print what it says. JSON as torchrun reads it:
//   {"message": {"message": "the disk is full", "extraInfo": {"timestamp": "1767225600"}}}
// Source: torch.distributed.elastic.multiprocessing.errors (ErrorHandler).

// Writes it where the environment names one; otherwise, or where it cannot be written, does nothing.
void WriteErrorFile(absl::string_view message) noexcept;

// What it says, up to 4096 bytes; empty, if there is none, or none that can be read.
std::string ReadErrorFile(const std::string& path);

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_ERROR_FILE_H_

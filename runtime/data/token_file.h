#ifndef WEFT_RUNTIME_DATA_TOKEN_FILE_H_
#define WEFT_RUNTIME_DATA_TOKEN_FILE_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft {

// The bytes of a file.
// Errors: NotFound if there is none; InvalidArgument if it is not a regular file, cannot be read, or is
//         empty. Each names the path.
std::string ReadTextFile(absl::string_view path);

// A token sequence cut in two: its tail is kept for validation. Views of the sequence that was split.
struct TokenSplit {
  absl::Span<const int32_t> train;
  absl::Span<const int32_t> validation;  // empty for val_fraction 0
};

// The last `val_fraction` of the tokens, rounded down, is for validation.
// Errors: InvalidArgument if val_fraction is outside [0, 1), context below 1, or a part that is not empty by
//         request is shorter than the context + 1 tokens that one sample takes.
TokenSplit SplitTokens(absl::Span<const int32_t> tokens, double val_fraction, int64_t context);

}  // namespace weft

#endif  // WEFT_RUNTIME_DATA_TOKEN_FILE_H_

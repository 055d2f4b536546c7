// Documents of any lengths, packed end to end into windows of one length.

#ifndef WEFT_RUNTIME_DATA_DATASET_PACKING_H_
#define WEFT_RUNTIME_DATA_DATASET_PACKING_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace weft {

// A part of a document that lies in a window, in the order of the window: `count` tokens from `first` on, and the separator
// after its last token if `ends`.
struct DocumentPiece {
  int64_t document = 0;
  int64_t first = 0;
  int64_t count = 0;
  bool ends = false;

  bool operator==(const DocumentPiece&) const = default;
};

struct PackingOptions {
  int64_t window = 0;  // tokens of a window, at least 1
  int64_t overlap =
      0;  // tokens that a window shares with the one before: 1 for inputs and targets one token on
  bool separators = false;  // a separator follows each document, also an empty one
};

// Which parts of which documents a window holds: documents stand one after another, and window w begins at token
// w (window - overlap) of all. Tokens at the end that fill no window are left out. A value.
//
// Cost: memory for one number per document; O(log documents) to find a window, and its pieces.
class Packing {
 public:
  // Errors: InvalidArgument for a window below 1, an overlap outside [0, window), a negative length (names the document).
  Packing(absl::Span<const int64_t> lengths, const PackingOptions& options);

  int64_t num_documents() const { return static_cast<int64_t>(begins_.size()) - 1; }
  int64_t num_windows() const { return num_windows_; }  // 0 if all documents together are too short
  int64_t window() const { return options_.window; }
  // Tokens of all documents, separators included.
  int64_t num_tokens() const { return begins_.back(); }

  // The pieces of a window, first to last: `window()` tokens together, separators included. No piece is empty.
  // Errors: InvalidArgument for a window outside [0, num_windows()).
  std::vector<DocumentPiece> At(int64_t window) const;

  // The document that a window begins in.
  // Errors: as At.
  int64_t FirstDocumentOf(int64_t window) const;

 private:
  int64_t BeginOf(int64_t window) const;

  PackingOptions options_;
  std::vector<int64_t> begins_;  // of each document in all tokens; their number at the end
  int64_t num_windows_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_DATA_DATASET_PACKING_H_

#include "runtime/data/dataset/packing.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace weft {

Packing::Packing(absl::Span<const int64_t> lengths, const PackingOptions& options) : options_(options) {
  WEFT_REQUIRE(options.window >= 1, "packing: window: expected at least 1 token, got ", options.window);
  WEFT_REQUIRE(options.overlap >= 0 && options.overlap < options.window, "packing: overlap: expected 0 to ",
               options.window - 1, ", below the window, got ", options.overlap);
  begins_.reserve(lengths.size() + 1);
  begins_.push_back(0);
  for (size_t i = 0; i < lengths.size(); ++i) {
    WEFT_REQUIRE(lengths[i] >= 0, "packing: document ", i, " has length ", lengths[i]);
    begins_.push_back(begins_.back() + lengths[i] + (options.separators ? 1 : 0));
  }
  const int64_t rest = num_tokens() - options.window;
  num_windows_ = rest < 0 ? 0 : rest / (options.window - options.overlap) + 1;
}

int64_t Packing::BeginOf(int64_t window) const {
  WEFT_REQUIRE(window >= 0 && window < num_windows_, "packing: window ", window, " is not within [0, ",
               num_windows_, ")");
  return window * (options_.window - options_.overlap);
}

int64_t Packing::FirstDocumentOf(int64_t window) const {
  // Of documents that begin at the same token, the last: the others are empty.
  return std::upper_bound(begins_.begin(), begins_.end(), BeginOf(window)) - begins_.begin() - 1;
}

std::vector<DocumentPiece> Packing::At(int64_t window) const {
  std::vector<DocumentPiece> pieces;
  int64_t begin = BeginOf(window);
  const int64_t end = begin + options_.window;
  for (int64_t document = FirstDocumentOf(window); begin < end; ++document) {
    const int64_t next = begins_[document + 1];
    if (next == begin) continue;  // an empty document
    const int64_t stop = std::min(next, end);
    const bool ends = options_.separators && stop == next;
    pieces.push_back({.document = document,
                      .first = begin - begins_[document],
                      .count = stop - begin - (ends ? 1 : 0),
                      .ends = ends});
    begin = stop;
  }
  return pieces;
}

}  // namespace weft

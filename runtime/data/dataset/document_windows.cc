#include "runtime/data/dataset/document_windows.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/data/dataset/token_windows.h"

namespace weft {
namespace {

PackingOptions PackingOf(const DocumentWindowsOptions& options) {
  WEFT_REQUIRE(options.context >= 1, "documents: context: expected at least 1, got ", options.context);
  return {.window = options.context + 1, .overlap = 1, .separators = options.separator.has_value()};
}

}  // namespace

DocumentWindows::DocumentWindows(absl::Span<const int32_t> tokens, absl::Span<const int64_t> lengths,
                                 const DocumentWindowsOptions& options)
    : tokens_(tokens), options_(options), packing_(lengths, PackingOf(options)) {
  first_token_.reserve(lengths.size());
  int64_t sum = 0;
  for (const int64_t length : lengths) {
    first_token_.push_back(sum);
    sum += length;
  }
  WEFT_REQUIRE(sum == static_cast<int64_t>(tokens.size()), "documents: their lengths add up to ", sum,
               ", there are ", tokens.size(), " tokens");
  WEFT_REQUIRE(packing_.num_windows() > 0, "documents: ", packing_.num_tokens(),
               " tokens are too few: a sample of context ", options.context, " takes ", options.context + 1);
  fields_ = WindowFields(options.context);
}

void DocumentWindows::Read(int64_t index, absl::Span<const FieldBytes> fields) const {
  const absl::Span<int32_t> inputs = ElementsOf<int32_t>(fields[0]);
  const absl::Span<int32_t> targets = ElementsOf<int32_t>(fields[1]);
  const auto context = static_cast<size_t>(options_.context);
  size_t at = 0;
  // Token `at` of the window is the input at its place, and the target of the place before.
  const auto put = [&](int32_t token, bool begins) {
    if (at < context) inputs[at] = token;
    if (at > 0) targets[at - 1] = begins && options_.border_target ? *options_.border_target : token;
    ++at;
  };
  for (const DocumentPiece& piece : packing_.At(index)) {
    const auto first = tokens_.begin() + first_token_[piece.document] + piece.first;
    for (int64_t i = 0; i < piece.count; ++i) put(first[i], /*begins=*/piece.first + i == 0);
    // Of an empty document, its separator is all that begins.
    if (piece.ends) put(*options_.separator, /*begins=*/piece.first + piece.count == 0);
  }
}

std::string DocumentWindows::NameOf(int64_t index) const {
  const std::vector<DocumentPiece> pieces = packing_.At(index);
  return absl::StrCat(options_.name.empty() ? "the documents" : absl::StrCat("'", options_.name, "'"),
                      ", window ", index, ": document ", pieces.front().document, " from token ",
                      pieces.front().first, " to document ", pieces.back().document);
}

}  // namespace weft

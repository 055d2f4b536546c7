// Documents packed into windows as samples: inputs, and targets one token on.

#ifndef WEFT_RUNTIME_DATA_DATASET_DOCUMENT_WINDOWS_H_
#define WEFT_RUNTIME_DATA_DATASET_DOCUMENT_WINDOWS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "runtime/data/dataset/dataset.h"
#include "runtime/data/dataset/packing.h"

namespace weft {

struct DocumentWindowsOptions {
  int64_t context = 0;                    // inputs of a sample, at least 1
  std::optional<int32_t> separator = {};  // a token after each document; nothing: none
  // What a target is where it is the first token of another document than its input's: an ignore_index of the loss
  // (CrossEntropyOptions). Nothing: that token.
  std::optional<int32_t> border_target = {};
  std::string name = "";  // of the documents, for errors
};

// Windows of context + 1 tokens of documents that stand one after another, each token an input once (Packing with an
// overlap of 1). Attention sees what is in the window, whatever document it is of.
//
// Lifetime: views the tokens.
class DocumentWindows final : public Dataset {
 public:
  // `tokens`: those of all documents, one after another, without separators; `lengths`: of each document.
  // Errors: InvalidArgument for a context below 1, lengths that do not add up to the tokens, or documents that do not fill
  //         a window.
  DocumentWindows(absl::Span<const int32_t> tokens, absl::Span<const int64_t> lengths,
                  const DocumentWindowsOptions& options);

  int64_t num_samples() const override { return packing_.num_windows(); }
  const std::vector<SampleField>& fields() const override { return fields_; }
  void Read(int64_t index, absl::Span<const FieldBytes> fields) const override;
  std::string NameOf(int64_t index) const override;

  const Packing& packing() const { return packing_; }

 private:
  absl::Span<const int32_t> tokens_;
  DocumentWindowsOptions options_;
  Packing packing_;
  std::vector<int64_t> first_token_;  // of each document in `tokens_`
  std::vector<SampleField> fields_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_DATA_DATASET_DOCUMENT_WINDOWS_H_

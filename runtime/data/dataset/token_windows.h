// Windows of a text as samples: inputs, and targets one token on.

#ifndef WEFT_RUNTIME_DATA_DATASET_TOKEN_WINDOWS_H_
#define WEFT_RUNTIME_DATA_DATASET_TOKEN_WINDOWS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "runtime/data/dataset/dataset.h"

namespace weft {

// The fields of a window of context + 1 tokens: "inputs", all but the last, and "targets", all but the first; i32
// [context] both.
std::vector<SampleField> WindowFields(int64_t context);

struct TokenWindowsOptions {
  int64_t context = 0;  // inputs of a sample, at least 1
  int64_t stride =
      0;  // tokens between the starts of two windows; 0: context, so that each token is an input once
  std::string name = "";  // of the text, for errors
};

// Windows of tokens that lie in memory. Those that would end beyond the text are left out.
//
// Lifetime: views the tokens.
class TokenWindows final : public Dataset {
 public:
  // Errors: InvalidArgument for a context below 1, a stride below 0, or fewer than context + 1 tokens.
  TokenWindows(absl::Span<const int32_t> tokens, const TokenWindowsOptions& options);

  int64_t num_samples() const override { return num_samples_; }
  const std::vector<SampleField>& fields() const override { return fields_; }
  void Read(int64_t index, absl::Span<const FieldBytes> fields) const override;
  std::string NameOf(int64_t index) const override;

  int64_t context() const { return context_; }
  // The first token of a window.
  int64_t StartOf(int64_t index) const { return index * stride_; }

 private:
  absl::Span<const int32_t> tokens_;
  std::string name_;
  int64_t context_;
  int64_t stride_;
  int64_t num_samples_;
  std::vector<SampleField> fields_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_DATA_DATASET_TOKEN_WINDOWS_H_

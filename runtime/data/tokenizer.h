#ifndef WEFT_RUNTIME_DATA_TOKENIZER_H_
#define WEFT_RUNTIME_DATA_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft {

// Turns text into token ids in [0, vocab_size()) and back. Immutable.
//
// Threads: any, at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // As written after --tokenizer: "bytes", "chars".
  virtual absl::string_view name() const = 0;
  virtual int64_t vocab_size() const = 0;

  // Errors: InvalidArgument that names the byte offset of what is not in the vocabulary, or not text at all.
  virtual std::vector<int32_t> Encode(absl::string_view text) const = 0;

  // The inverse of Encode; for `bytes` the result need not be UTF-8 (PrintableText).
  // Errors: InvalidArgument for an id outside [0, vocab_size()): a model whose vocabulary is larger must be
  //         sampled below vocab_size().
  virtual std::string Decode(absl::Span<const int32_t> tokens) const = 0;

  // One JSON object that TokenizerFromJson turns into an equal tokenizer: goes into checkpoints.
  virtual std::string ToJson() const = 0;
};

// The tokenizer called `name`. "bytes" has the 256 bytes, whatever `text` holds; "chars" has the code points
// of `text`, in ascending order.
// Errors: InvalidArgument for another name (lists the names), and for "chars" if `text` is empty or not UTF-8
//         (names the byte offset).
std::unique_ptr<Tokenizer> MakeTokenizer(absl::string_view name, absl::string_view text);

// Errors: DataLoss if `json` is not what ToJson writes.
std::unique_ptr<Tokenizer> TokenizerFromJson(absl::string_view json);

}  // namespace weft

#endif  // WEFT_RUNTIME_DATA_TOKENIZER_H_

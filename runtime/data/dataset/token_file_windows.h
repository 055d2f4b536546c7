// Windows of a file of tokens that need not fit in memory.

#ifndef WEFT_RUNTIME_DATA_DATASET_TOKEN_FILE_WINDOWS_H_
#define WEFT_RUNTIME_DATA_DATASET_TOKEN_FILE_WINDOWS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/dataset/dataset.h"

namespace weft {

// How a token is written, lowest byte first.
enum class TokenWidth { k16, k32 };

struct TokenFileOptions {
  TokenWidth width = TokenWidth::k16;
  int64_t header_bytes = 0;  // before the first token
  int64_t context = 0;       // inputs of a sample, at least 1
  int64_t stride = 0;        // as TokenWindowsOptions
};

// The samples of TokenWindows, of a file of unsigned tokens one after another, as nanoGPT (16 bits, no header) and llm.c (16
// bits, a header of 1024 bytes) write them. Each Read reads its window alone; nothing is kept.
//
// Owns the open file.
class TokenFileWindows final : public Dataset {
 public:
  // Errors: NotFound; InvalidArgument as TokenWindows, and for bytes that are no whole number of tokens. Each names the path.
  TokenFileWindows(const std::string& path, const TokenFileOptions& options);
  ~TokenFileWindows() override;
  TokenFileWindows(const TokenFileWindows&) = delete;
  TokenFileWindows& operator=(const TokenFileWindows&) = delete;

  int64_t num_samples() const override { return num_samples_; }
  const std::vector<SampleField>& fields() const override { return fields_; }
  // Errors: DataLoss for a file that has become shorter, or a token of 2^31 or more; what the system says.
  void Read(int64_t index, absl::Span<const FieldBytes> fields) const override;
  std::string NameOf(int64_t index) const override;

 private:
  const std::string path_;
  TokenFileOptions options_;
  int64_t num_samples_ = 0;
  std::vector<SampleField> fields_;
  int file_ = -1;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_DATA_DATASET_TOKEN_FILE_WINDOWS_H_

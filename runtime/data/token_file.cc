#include "runtime/data/token_file.h"

#include <cmath>
#include <filesystem>
#include <system_error>

#include "runtime/base/error.h"
#include "runtime/base/whole_file.h"

namespace weft {
namespace {

void RequireSample(absl::string_view part, size_t num_tokens, int64_t context) {
  WEFT_REQUIRE(static_cast<int64_t>(num_tokens) > context, "the text is too short: its ", part, " part has ",
               num_tokens, " tokens, and a sample of context ", context, " takes ", context + 1,
               "; give a longer text, a smaller context or another val_fraction");
}

}  // namespace

std::string ReadTextFile(absl::string_view path) {
  const std::filesystem::path file{std::string(path)};
  std::error_code failure;
  const std::filesystem::file_status status = std::filesystem::status(file, failure);
  if (status.type() == std::filesystem::file_type::not_found) {
    Throw(absl::StatusCode::kNotFound, "no such file: ", path);
  }
  WEFT_REQUIRE(!std::filesystem::is_directory(status), "expected a text file, got a folder: ", path);
  WEFT_REQUIRE(std::filesystem::is_regular_file(status), "expected a regular file: ", path);
  std::string bytes = ReadWholeFile(file.string());
  WEFT_REQUIRE(!bytes.empty(), "the file is empty: ", path);
  return bytes;
}

TokenSplit SplitTokens(absl::Span<const int32_t> tokens, double val_fraction, int64_t context) {
  WEFT_REQUIRE(val_fraction >= 0 && val_fraction < 1, "val_fraction: expected at least 0 and below 1, got ",
               val_fraction);
  WEFT_REQUIRE(context >= 1, "context: expected at least 1, got ", context);
  const auto num_validation =
      static_cast<size_t>(std::floor(static_cast<double>(tokens.size()) * val_fraction));
  TokenSplit split;
  split.train = tokens.subspan(0, tokens.size() - num_validation);
  split.validation = tokens.subspan(tokens.size() - num_validation);
  RequireSample("training", split.train.size(), context);
  if (val_fraction > 0) RequireSample("validation", split.validation.size(), context);
  return split;
}

}  // namespace weft

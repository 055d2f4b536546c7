#include "runtime/data/dataset/token_windows.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {

std::vector<SampleField> WindowFields(int64_t context) {
  return {{.name = "inputs", .dtype = DType::kI32, .shape = {context}},
          {.name = "targets", .dtype = DType::kI32, .shape = {context}}};
}

TokenWindows::TokenWindows(absl::Span<const int32_t> tokens, const TokenWindowsOptions& options)
    : tokens_(tokens),
      name_(options.name.empty() ? "the text" : absl::StrCat("'", options.name, "'")),
      context_(options.context),
      stride_(options.stride == 0 ? options.context : options.stride) {
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  WEFT_REQUIRE(context_ >= 1, "token windows: context: expected at least 1, got ", context_);
  WEFT_REQUIRE(stride_ >= 1, "token windows: stride: expected at least 0, got ", options.stride);
  WEFT_REQUIRE(num_tokens > context_, "token windows: ", num_tokens, " tokens of ", name_,
               " are too few: a sample of context ", context_, " takes ", context_ + 1);
  num_samples_ = (num_tokens - context_ - 1) / stride_ + 1;
  fields_ = WindowFields(context_);
}

void TokenWindows::Read(int64_t index, absl::Span<const FieldBytes> fields) const {
  const auto window = tokens_.begin() + StartOf(index);
  std::copy(window, window + context_, ElementsOf<int32_t>(fields[0]).begin());
  std::copy(window + 1, window + 1 + context_, ElementsOf<int32_t>(fields[1]).begin());
}

std::string TokenWindows::NameOf(int64_t index) const {
  return absl::StrCat(name_, ", tokens [", StartOf(index), ", ", StartOf(index) + context_ + 1, ")");
}

}  // namespace weft

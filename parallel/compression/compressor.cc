#include "parallel/compression/compressor.h"

#include <utility>

namespace weft {
void GradientBucket::Run(absl::AnyInvocable<void()> task) {
  if (options_.worker == nullptr) return task();
  works_.push_back(options_.worker->Submit(std::move(task)));
}

MethodArgument ErrorFeedbackArgument() {
  return {.name = "error_feedback", .type = MethodArgument::Type::kFlag, .standard = 1};
}

std::vector<CompressorState> ResidualState(bool error_feedback) {
  if (!error_feedback) return {};
  return {{.name = "residual"}};
}

}  // namespace weft

#include "parallel/compression/compressor.h"

#include <cstring>
#include <utility>

namespace weft {

void GradientBucket::Run(absl::AnyInvocable<void()> task) {
  if (options_.worker == nullptr) return task();
  works_.push_back(options_.worker->Submit(std::move(task)));
}

void GradientPart::TakeOwned(int rank) const {
  const auto item = static_cast<int64_t>(ItemSize(gradient.dtype()));
  const auto* const from = static_cast<const char*>(gradient.data());
  auto* to = static_cast<char*>(owned.data());
  boxes[rank].ForEachRun([&](int64_t begin, int64_t length) {
    std::memcpy(to, from + begin * item, length * item);
    to += length * item;
  });
}

Work Compressor::ReduceScatter(const std::shared_ptr<GradientBucket>& bucket) const {
  bucket->Add(Reduce(bucket));
  bucket->Run([bucket] {
    for (const GradientPart& part : bucket->parts()) part.TakeOwned(bucket->group().rank());
  });
  return bucket->works().empty() ? Work() : bucket->works().back();
}

MethodArgument ErrorFeedbackArgument() {
  return {.name = "error_feedback", .type = MethodArgument::Type::kFlag, .standard = 1};
}

std::vector<CompressorState> ResidualState(bool error_feedback) {
  if (!error_feedback) return {};
  return {{.name = "residual"}};
}

}  // namespace weft

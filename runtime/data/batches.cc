#include "runtime/data/batches.h"

#include <algorithm>
#include <limits>

#include "absl/numeric/int128.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

void RequireOneSample(absl::Span<const int32_t> tokens, int64_t context) {
  WEFT_REQUIRE(context >= 1, "batches: context: expected at least 1, got ", context);
  WEFT_REQUIRE(static_cast<int64_t>(tokens.size()) > context, "batches: ", tokens.size(),
               " tokens are too few: a sample of context ", context, " takes ", context + 1);
}

int64_t NumStarts(absl::Span<const int32_t> tokens, int64_t context) {
  RequireOneSample(tokens, context);
  return static_cast<int64_t>(tokens.size()) - context;
}

// start_of(i): the first token of the i-th sample of the batch.
template <class StartOf>
TokenBatch Gather(absl::Span<const int32_t> tokens, int64_t context, int64_t count, StartOf start_of) {
  TokenBatch batch;
  batch.count = count;
  batch.context = context;
  batch.inputs.reserve(static_cast<size_t>(count * context));
  batch.targets.reserve(static_cast<size_t>(count * context));
  for (int64_t i = 0; i < count; ++i) {
    const auto window = tokens.begin() + start_of(i);
    batch.inputs.insert(batch.inputs.end(), window, window + context);
    batch.targets.insert(batch.targets.end(), window + 1, window + 1 + context);
  }
  return batch;
}

}  // namespace

TrainBatches::TrainBatches(absl::Span<const int32_t> tokens, int64_t context, uint64_t seed)
    : tokens_(tokens),
      context_(context),
      starts_(NumStarts(tokens, context), /*epoch_size=*/std::numeric_limits<int64_t>::max(), seed) {}

TokenBatch TrainBatches::Get(int64_t step, int64_t first, int64_t count) const {
  WEFT_REQUIRE(step >= 0 && step < (int64_t{1} << 32), "batches: step: expected 0 to 2^32 - 1, got ", step);
  WEFT_REQUIRE(first >= 0 && count >= 0, "batches: samples: expected no negative number, got first ", first,
               ", count ", count);
  return Gather(tokens_, context_, count, [&](int64_t i) { return starts_.At(step, first + i); });
}

EvalBatches::EvalBatches(absl::Span<const int32_t> tokens, int64_t context, int64_t max_samples)
    : tokens_(tokens), context_(context) {
  RequireOneSample(tokens, context);
  WEFT_REQUIRE(max_samples >= 1, "evaluation: samples: expected at least 1, got ", max_samples);
  // The last target lies one token past its window.
  num_windows_ = (static_cast<int64_t>(tokens.size()) - 1) / context;
  num_samples_ = std::min(max_samples, num_windows_);
}

TokenBatch EvalBatches::Get(int64_t first, int64_t count) const {
  WEFT_REQUIRE(first >= 0 && count >= 0 && first <= num_samples_ - count, "evaluation: samples [", first,
               ", ", first + count, ") are not within [0, ", num_samples_, ")");
  return Gather(tokens_, context_, count, [&](int64_t i) {
    const absl::uint128 window = absl::uint128(static_cast<uint64_t>(first + i)) *
                                 static_cast<uint64_t>(num_windows_) / static_cast<uint64_t>(num_samples_);
    return static_cast<int64_t>(absl::Uint128Low64(window)) * context_;
  });
}

}  // namespace weft

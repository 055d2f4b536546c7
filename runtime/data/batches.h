#ifndef WEFT_RUNTIME_DATA_BATCHES_H_
#define WEFT_RUNTIME_DATA_BATCHES_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "runtime/data/sampling/sampler.h"

namespace weft {

// Some consecutive samples of a global batch. A sample is a window of context + 1 tokens of the text: all but
// the last are its inputs, all but the first its targets.
//
// Shape: inputs, targets [count, context], row-major.
struct TokenBatch {
  int64_t count = 0;
  int64_t context = 0;
  std::vector<int32_t> inputs;
  std::vector<int32_t> targets;

  bool operator==(const TokenBatch&) const = default;
};

// The training samples of a text, drawn with replacement. Which window a sample is follows from (seed, step,
// sample number in the global batch) alone: never from the rank that asks, the batch size or the mesh, so
// every layout trains on the same tokens, and a resumed run goes on where it stopped. A ReplacementSampler says
// which: the step is its epoch.
//
// Lifetime: views the tokens.
// Threads: any, at once.
class TrainBatches {
 public:
  // Errors: InvalidArgument if context < 1 or there are fewer than context + 1 tokens.
  TrainBatches(absl::Span<const int32_t> tokens, int64_t context, uint64_t seed);

  // Samples [first, first + count) of the global batch of `step`; count may be 0 (an empty shard).
  // Errors: InvalidArgument for a negative argument or a step of 2^32 or more.
  TokenBatch Get(int64_t step, int64_t first, int64_t count) const;

 private:
  absl::Span<const int32_t> tokens_;
  int64_t context_;
  ReplacementSampler starts_;
};

// The samples of an evaluation: windows that do not overlap, the same at every call. If fewer are wanted than
// the text has, they are spread evenly over it, so that a short evaluation sees all of the text.
//
// Lifetime: views the tokens.
// Threads: any, at once.
class EvalBatches {
 public:
  // Up to `max_samples` windows.
  // Errors: as TrainBatches; also if max_samples < 1.
  EvalBatches(absl::Span<const int32_t> tokens, int64_t context, int64_t max_samples);

  // max_samples, or as many windows as the text has if that is less; at least 1.
  int64_t num_samples() const { return num_samples_; }

  // Samples [first, first + count).
  // Errors: InvalidArgument for a range outside [0, num_samples()].
  TokenBatch Get(int64_t first, int64_t count) const;

 private:
  absl::Span<const int32_t> tokens_;
  int64_t context_;
  int64_t num_windows_;
  int64_t num_samples_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_DATA_BATCHES_H_

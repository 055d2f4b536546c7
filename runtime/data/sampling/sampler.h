// Which sample comes when.

#ifndef WEFT_RUNTIME_DATA_SAMPLING_SAMPLER_H_
#define WEFT_RUNTIME_DATA_SAMPLING_SAMPLER_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace weft {

// An endless sequence of samples of a dataset, in epochs: sample i of epoch e is a pure function of (seed, e, i), never of
// the rank that asks, the number of ranks or the batch. So a position in the data is one number, how many samples have
// been consumed, and going on from it replays nothing. Immutable.
//
// Threads: any, at once.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // What At returns is below it: the samples of the dataset.
  virtual int64_t num_samples() const = 0;
  // Samples of an epoch, at least 1.
  virtual int64_t epoch_size() const = 0;

  // The sample that comes i-th in an epoch, both from 0.
  // Errors: InvalidArgument for an i outside [0, epoch_size()), an epoch below 0 or of 2^32 or more.
  virtual int64_t At(int64_t epoch, int64_t i) const = 0;

  // What two runs have to share so that one goes on with the other's samples: "shuffled(9345, seed 1337)".
  virtual std::string ToString() const = 0;

  // The sample that comes when `position` samples have been consumed: epochs follow each other.
  // Errors: InvalidArgument for a position below 0; as At.
  int64_t AtPosition(int64_t position) const;
};

// 0, 1, 2, ..., the same in every epoch.
class SequentialSampler final : public Sampler {
 public:
  // Errors: InvalidArgument for fewer than 1 sample.
  explicit SequentialSampler(int64_t num_samples);

  int64_t num_samples() const override { return num_samples_; }
  int64_t epoch_size() const override { return num_samples_; }
  int64_t At(int64_t epoch, int64_t i) const override;
  std::string ToString() const override;

 private:
  int64_t num_samples_;
};

// Each sample once per epoch, in another random order each (Permutation).
class ShuffledSampler final : public Sampler {
 public:
  // Errors: InvalidArgument for fewer than 1 sample, or more than 2^62.
  ShuffledSampler(int64_t num_samples, uint64_t seed);

  int64_t num_samples() const override { return num_samples_; }
  int64_t epoch_size() const override { return num_samples_; }
  int64_t At(int64_t epoch, int64_t i) const override;
  std::string ToString() const override;

 private:
  int64_t num_samples_;
  uint64_t seed_;
};

// Each sample drawn from all of them, whatever has come before. An epoch is as long as its user says; TrainBatches draws
// these samples with the step as its epoch.
class ReplacementSampler final : public Sampler {
 public:
  // Errors: InvalidArgument for fewer than 1 sample, or an epoch of fewer than 1.
  ReplacementSampler(int64_t num_samples, int64_t epoch_size, uint64_t seed);

  int64_t num_samples() const override { return num_samples_; }
  int64_t epoch_size() const override { return epoch_size_; }
  int64_t At(int64_t epoch, int64_t i) const override;
  std::string ToString() const override;

 private:
  int64_t num_samples_;
  int64_t epoch_size_;
  uint64_t seed_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_DATA_SAMPLING_SAMPLER_H_

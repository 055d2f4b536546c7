// Norms over channels as modules: batch norm with running statistics, group norm.

#ifndef WEFT_DTENSOR_NN_LAYERS_CHANNEL_NORM_H_
#define WEFT_DTENSOR_NN_LAYERS_CHANNEL_NORM_H_

#include <optional>
#include <string>

#include "dtensor/nn/module.h"

namespace weft {

struct BatchNormOptions {
  double eps = 1e-5;
  // What a batch weighs in the running statistics; not given: all batches weigh the same.
  std::optional<double> momentum = 0.1;
  bool affine = true;  // has weight and bias
  bool track_statistics =
      true;  // has running statistics; without them, those of the batch serve in evaluation too
};

// Normalises each channel to mean 0 and variance 1, then scales and shifts. In training by the mean and variance of the
// batch, the whole of it wherever its parts lie: a batch norm over several ranks is that of one. In evaluation
// (Module::Eval, EvaluationGuard) by running statistics, which each call in training brings up to date: (1 - momentum) of
// them and momentum of the batch's, whose variance counts as that of a sample. A forward that backward runs again
// (recomputation) leaves them alone. Each microbatch is a batch. A norm whose running statistics are taken away, before the
// model has values (running_mean.reset()), is as one that was made without them.
//
// Shape:  x [n, c, ...] -> the same; weight [c], initially one; bias [c], initially zero; buffers running_mean [c], zero,
//         running_var [c], one, num_batches_tracked, a count.
// Layout: ColumnParallel splits all of them over channels: give it the pin {.input = Shard(1)}.
// Cost:   where dims other than c are split, all-reduces of two numbers per channel, in backward too.
// Errors: InvalidArgument for another number of channels; in training for a batch with one element per channel; for
//         running_mean or running_var without the other, or without num_batches_tracked where no momentum is given.
// Source: Ioffe & Szegedy, arXiv 1502.03167.
class BatchNorm : public Module {
 public:
  BatchNorm(Module* parent, std::string name, int64_t channels, const BatchNormOptions& options = {});

  std::optional<Parameter> weight;
  std::optional<Parameter> bias;
  std::optional<ModuleBuffer> running_mean;
  std::optional<ModuleBuffer> running_var;
  std::optional<ModuleBuffer> num_batches_tracked;

 protected:
  DTensor Forward(const DTensor& x) override;

 private:
  void Track(const DTensor& mean, const DTensor& variance, int64_t count);

  int64_t channels_;
  BatchNormOptions options_;
};

// Of x [n, c] or [n, c, l].
class BatchNorm1d : public BatchNorm {
 public:
  using BatchNorm::BatchNorm;

 protected:
  DTensor Forward(const DTensor& x) override;
};

// Of x [n, c, h, w].
class BatchNorm2d : public BatchNorm {
 public:
  using BatchNorm::BatchNorm;

 protected:
  DTensor Forward(const DTensor& x) override;
};

// Normalises the channels of each image in groups, then scales and shifts by channel.
// Shape:  x [n, c, ...] -> the same; weight [c], initially one; bias [c], initially zero.
// Errors: InvalidArgument, unless groups divide the channels.
// Source: Wu & He, "Group Normalization", arXiv 1803.08494.
class GroupNorm : public Module {
 public:
  GroupNorm(Module* parent, std::string name, int64_t groups, int64_t channels, double eps = 1e-5);

  Parameter weight;
  Parameter bias;

 protected:
  DTensor Forward(const DTensor& x) override;

 private:
  int64_t groups_;
  double eps_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_NN_LAYERS_CHANNEL_NORM_H_

#include "dtensor/nn/layers/channel_norm.h"

#include "dtensor/functions.h"

namespace weft {
namespace {

ParameterSpec ByChannel(int64_t channels, double value) {
  return {.shape = {channels},
          .initializer = Initializer::Constant(value),
          .shard_dims = {.column = 0},
          .decays = false};
}

BufferSpec Statistic(int64_t channels, double value) {
  return {.shape = {channels}, .initializer = Initializer::Constant(value), .shard_dims = {.column = 0}};
}

// Statistics are f64 of f64 and f32 otherwise, whatever the buffers are.
DTensor ForInput(const DTensor& statistic, const DTensor& x) {
  return Cast(statistic, x.dtype() == DType::kF64 ? DType::kF64 : DType::kF32);
}

}  // namespace

BatchNorm::BatchNorm(Module* parent, std::string name, int64_t channels, const BatchNormOptions& options)
    : Module(parent, std::move(name)), channels_(channels), options_(options) {
  WEFT_REQUIRE(channels >= 1, "batch norm '", path(), "': expected at least one channel, got ", channels);
  WEFT_REQUIRE(!options.momentum || (*options.momentum >= 0 && *options.momentum <= 1), "batch norm '",
               path(), "': expected a momentum from 0 to 1, got ", options.momentum.value_or(0));
  if (options.affine) {
    weight.emplace(this, "weight", ByChannel(channels, 1));
    bias.emplace(this, "bias", ByChannel(channels, 0));
  }
  if (options.track_statistics) {
    running_mean.emplace(this, "running_mean", Statistic(channels, 0));
    running_var.emplace(this, "running_var", Statistic(channels, 1));
    num_batches_tracked.emplace(this, "num_batches_tracked", BufferSpec{.shape = {}, .dtype = DType::kI64});
  }
}

DTensor BatchNorm::Forward(const DTensor& x) {
  WEFT_REQUIRE(x.ndim() >= 2 && x.shape()[1] == channels_, "batch norm '", path(), "': expected x [n, ",
               channels_, ", ...], got ", x.ToString());
  WEFT_REQUIRE(running_mean.has_value() == running_var.has_value(), "batch norm '", path(),
               "': expected running_mean and running_var, or neither, got ",
               running_mean ? "running_mean" : "running_var", " alone");
  const bool tracks = running_mean.has_value();  // whoever has the module may have taken them away
  const RankState& state = context()->state();
  const DTensor w = weight ? weight->Value() : DTensor();
  const DTensor b = bias ? bias->Value() : DTensor();
  if (!state.training() && tracks) {
    return BatchNormalizeBy(x, ForInput(running_mean->Value(), x), ForInput(running_var->Value(), x), w, b,
                            options_.eps);
  }
  const int64_t count = x.shape().num_elements() / channels_;
  WEFT_REQUIRE(!state.training() || count > 1, "batch norm '", path(),
               "': expected more than one element per channel in training, got ", x.ToString());
  const BatchNormResult batch = BatchNormalize(x, w, b, options_.eps);
  const bool runs_again = state.in_backward();
  if (tracks && !runs_again) Track(batch.mean, batch.variance, count);
  return batch.y;
}

// mean' = mean + factor (batch mean - mean), as (1 - factor) mean + factor batch mean.
void BatchNorm::Track(const DTensor& mean, const DTensor& variance, int64_t count) {
  const NoGradGuard no_grad(context()->state());
  const MemoryKindGuard kind(*context()->allocator(), MemoryKind::kParam);
  const double unbiased = static_cast<double>(count) / static_cast<double>(count - 1);
  WEFT_REQUIRE(options_.momentum || num_batches_tracked, "batch norm '", path(),
               "': without a momentum batches weigh by num_batches_tracked: expected it, got none");
  if (num_batches_tracked) num_batches_tracked->Set(num_batches_tracked->Value() + 1);
  const auto update = [&](ModuleBuffer& running, const DTensor& statistic) {
    const DTensor& before = running.Value();
    const DTensor of_batch = Cast(statistic, before.dtype());
    if (options_.momentum) {
      running.Set(before * (1 - *options_.momentum) + of_batch * *options_.momentum);
    } else {
      const DTensor factor = 1 / Cast(num_batches_tracked->Value(), before.dtype());
      running.Set(before + (of_batch - before) * factor);
    }
  };
  update(*running_mean, mean);
  update(*running_var, variance * unbiased);
}

DTensor BatchNorm1d::Forward(const DTensor& x) {
  WEFT_REQUIRE(x.ndim() == 2 || x.ndim() == 3, "batch norm '", path(),
               "': expected x [n, c] or [n, c, l], got ", x.ToString());
  return BatchNorm::Forward(x);
}

DTensor BatchNorm2d::Forward(const DTensor& x) {
  WEFT_REQUIRE(x.ndim() == 4, "batch norm '", path(), "': expected x [n, c, h, w], got ", x.ToString());
  return BatchNorm::Forward(x);
}

GroupNorm::GroupNorm(Module* parent, std::string name, int64_t groups, int64_t channels, double eps)
    : Module(parent, std::move(name)),
      weight(this, "weight", ByChannel(channels, 1)),
      bias(this, "bias", ByChannel(channels, 0)),
      groups_(groups),
      eps_(eps) {
  WEFT_REQUIRE(groups >= 1 && channels >= 1 && channels % groups == 0, "group norm '", path(), "': ", groups,
               " groups do not divide ", channels, " channels");
}

DTensor GroupNorm::Forward(const DTensor& x) {
  return GroupNormalize(x, groups_, weight.Value(), bias.Value(), eps_);
}

}  // namespace weft

#include "ops/normalization/channel_norm.h"

#include <vector>

#include "ops/cpu/normalization/channel_passes.h"
#include "ops/normalization/channel_norm_grad.h"
#include "ops/op/kernel.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

using Call = ChannelNormCall;

// A vector or statistic in the compute type, row-major. A statistic has that type already.
template <class C>
Tensor Numbers(const Tensor& tensor, KernelContext& context) {
  return tensor.dtype() == kDTypeOf<C> ? Dense(tensor, context)
                                       : CastTensor(tensor, kDTypeOf<C>, context.allocator);
}

// to[channel] = sum over images of sums, rounded to T.
// Serial: no more than a number per row is left by now, and the bits follow from the order of images.
template <class T>
void SumImages(const ChannelRows& rows, const std::vector<double>& sums, const Tensor& to) {
  std::vector<double> total(rows.c, 0.0);
  rows.ForEach({0, rows.num_rows()},
               [&](int64_t row, int64_t channel, int64_t) { total[channel] += sums[row]; });
  T* const out = to.data<T>();
  for (int64_t i = 0; i < rows.c; ++i) out[i] = static_cast<T>(static_cast<ComputeType<T>>(total[i]));
}

// 0 where no local row reaches: pieces without elements, and groups that other pieces hold.
void Clear(const Tensor& statistic) { FillTensor(statistic, 0); }

// Mean first, then squares around it: two readings of x, since E[x^2] - mean^2 cancels where the mean is
// large beside the deviation.
template <class T>
void NormOf(const Call& call) {
  using C = ComputeType<T>;
  const ChannelPasses<T> passes(call);
  const Tensor w = Numbers<C>(call.inputs[1], call.context);
  const Tensor b = Numbers<C>(call.inputs[2], call.context);
  Clear(call.outputs[1]);
  Clear(call.outputs[2]);
  C* const mean = call.outputs[1].data<C>();
  C* const variance = call.outputs[2].data<C>();
  const RowRange all = {0, passes.rows().num_rows()};
  std::vector<double> sums(all.end);
  std::vector<C> rstd(passes.rows().num_statistics());
  const auto apply = [&](RowRange range) {
    passes.Apply(range, w.data<C>(), b.data<C>(), mean, rstd.data(), call.outputs[0]);
  };
  // A group is of one image and stays in cache from its sums to its result: one task does all passes over it.
  // A batch norm's channel is of all images, so each pass must end everywhere before the next begins.
  if (passes.rows().groups > 0) {
    passes.ForEachRange(/*whole_groups=*/true, [&](RowRange range) {
      passes.Sums(range, sums.data());
      passes.Means(range, sums.data(), nullptr, mean);
      passes.Squares(range, mean, sums.data());
      passes.Means(range, sums.data(), nullptr, variance);
      passes.Rstds(range, variance, rstd.data());
      apply(range);
    });
    return;
  }
  passes.ForEachRange(false, [&](RowRange range) { passes.Sums(range, sums.data()); });
  passes.Means(all, sums.data(), nullptr, mean);
  passes.ForEachRange(false, [&](RowRange range) { passes.Squares(range, mean, sums.data()); });
  passes.Means(all, sums.data(), nullptr, variance);
  passes.Rstds(all, variance, rstd.data());
  passes.ForEachRange(false, apply);
}

// Where x is split, each statistic is an op and an all-reduce of its own. The divisor is the global count, so
// that the pieces' results add up to the mean. The variance takes the mean of the whole, which is known by
// then, and its pieces add up just so.
template <class T>
void MeanOf(const Call& call) {
  const ChannelPasses<T> passes(call);
  std::vector<double> sums(passes.rows().num_rows());
  passes.ForEachRange(false, [&](RowRange range) { passes.Sums(range, sums.data()); });
  Clear(call.outputs[0]);
  passes.Means({0, passes.rows().num_rows()}, sums.data(), nullptr, call.outputs[0].data<ComputeType<T>>());
}

template <class T>
void VarianceOf(const Call& call) {
  using C = ComputeType<T>;
  const ChannelPasses<T> passes(call);
  const Tensor mean = Numbers<C>(call.inputs[1], call.context);
  std::vector<double> sums(passes.rows().num_rows());
  passes.ForEachRange(false, [&](RowRange range) { passes.Squares(range, mean.data<C>(), sums.data()); });
  Clear(call.outputs[0]);
  passes.Means({0, passes.rows().num_rows()}, sums.data(), nullptr, call.outputs[0].data<C>());
}

template <class T>
void ApplyOf(const Call& call) {
  using C = ComputeType<T>;
  const ChannelPasses<T> passes(call);
  const Tensor w = Numbers<C>(call.inputs[1], call.context);
  const Tensor b = Numbers<C>(call.inputs[2], call.context);
  const Tensor mean = Numbers<C>(call.inputs[3], call.context);
  const Tensor variance = Numbers<C>(call.inputs[4], call.context);
  std::vector<C> rstd(passes.rows().num_statistics());
  passes.Rstds({0, passes.rows().num_rows()}, variance.data<C>(), rstd.data());
  passes.ForEachRange(false, [&](RowRange range) {
    passes.Apply(range, w.data<C>(), b.data<C>(), mean.data<C>(), rstd.data(), call.outputs[0]);
  });
}

// What the gradient ops read, and the sums that they begin with.
// One reading of x and dy makes both sums of a row. They serve twice: over images they are db and dw,
// weighted and over a statistic's rows they are what dx subtracts for the mean and for the variance.
template <class T>
struct Gradient {
  using C = ComputeType<T>;

  explicit Gradient(const Call& call)
      : passes(call),
        dy(passes.View(call.inputs[4])),
        w(Numbers<C>(call.inputs[1], call.context)),
        mean(Numbers<C>(call.inputs[2], call.context)),
        rstd(passes.rows().num_statistics()),
        sums(passes.rows().num_rows()),
        dots(passes.rows().num_rows()) {
    const Tensor variance = Numbers<C>(call.inputs[3], call.context);
    passes.Rstds({0, passes.rows().num_rows()}, variance.template data<C>(), rstd.data());
  }

  void Sums(RowRange range) {
    passes.GradSums(range, dy, mean.template data<C>(), rstd.data(), sums.data(), dots.data());
  }
  void Means(RowRange range, C* g_mean, C* gh_mean) const {
    passes.Means(range, sums.data(), w.template data<C>(), g_mean);
    passes.Means(range, dots.data(), w.template data<C>(), gh_mean);
  }
  void Apply(RowRange range, const C* g_mean, const C* gh_mean, const Tensor& dx) const {
    passes.GradApply(range, dy, w.template data<C>(), mean.template data<C>(), rstd.data(), g_mean, gh_mean,
                     dx);
  }

  ChannelPasses<T> passes;
  RowView dy;
  Tensor w, mean;
  std::vector<C> rstd;
  std::vector<double> sums, dots;
};

template <class T>
void GradOf(const Call& call) {
  using C = ComputeType<T>;
  Gradient<T> gradient(call);
  const ChannelRows& rows = gradient.passes.rows();
  std::vector<C> g_mean(rows.num_statistics());
  std::vector<C> gh_mean(rows.num_statistics());
  const auto apply = [&](RowRange range) {
    gradient.Apply(range, g_mean.data(), gh_mean.data(), call.outputs[0]);
  };
  if (rows.groups > 0) {
    gradient.passes.ForEachRange(/*whole_groups=*/true, [&](RowRange range) {
      gradient.Sums(range);
      gradient.Means(range, g_mean.data(), gh_mean.data());
      apply(range);
    });
  } else {
    gradient.passes.ForEachRange(false, [&](RowRange range) { gradient.Sums(range); });
    gradient.Means({0, rows.num_rows()}, g_mean.data(), gh_mean.data());
    gradient.passes.ForEachRange(false, apply);
  }
  // From the rows' sums, which are in double and complete whichever way dx was made.
  SumImages<T>(rows, gradient.dots, call.outputs[1]);
  SumImages<T>(rows, gradient.sums, call.outputs[2]);
}

// The first half of the gradient where x is split: its sums are all-reduced before GradApplyOf takes them.
template <class T>
void GradSumsOf(const Call& call) {
  using C = ComputeType<T>;
  Gradient<T> gradient(call);
  gradient.passes.ForEachRange(false, [&](RowRange range) { gradient.Sums(range); });
  SumImages<T>(gradient.passes.rows(), gradient.dots, call.outputs[0]);
  SumImages<T>(gradient.passes.rows(), gradient.sums, call.outputs[1]);
  Clear(call.outputs[2]);
  Clear(call.outputs[3]);
  gradient.Means({0, gradient.passes.rows().num_rows()}, call.outputs[2].data<C>(),
                 call.outputs[3].data<C>());
}

template <class T>
void GradApplyOf(const Call& call) {
  using C = ComputeType<T>;
  const Gradient<T> gradient(call);
  const Tensor g_mean = Numbers<C>(call.inputs[5], call.context);
  const Tensor gh_mean = Numbers<C>(call.inputs[6], call.context);
  gradient.passes.ForEachRange(false, [&](RowRange range) {
    gradient.Apply(range, g_mean.data<C>(), gh_mean.data<C>(), call.outputs[0]);
  });
}

void Norm(const Call& call) {
  VisitFloating(call.inputs[0].dtype(), "channel_norm",
                [&](auto tag) { NormOf<typename decltype(tag)::type>(call); });
}

void Mean(const Call& call) {
  VisitFloating(call.inputs[0].dtype(), "channel_mean",
                [&](auto tag) { MeanOf<typename decltype(tag)::type>(call); });
}

void Variance(const Call& call) {
  VisitFloating(call.inputs[0].dtype(), "channel_variance",
                [&](auto tag) { VarianceOf<typename decltype(tag)::type>(call); });
}

void Apply(const Call& call) {
  VisitFloating(call.inputs[0].dtype(), "channel_norm_apply",
                [&](auto tag) { ApplyOf<typename decltype(tag)::type>(call); });
}

void Grad(const Call& call) {
  VisitFloating(call.inputs[0].dtype(), "channel_norm_grad",
                [&](auto tag) { GradOf<typename decltype(tag)::type>(call); });
}

void GradSums(const Call& call) {
  VisitFloating(call.inputs[0].dtype(), "channel_norm_grad_sums",
                [&](auto tag) { GradSumsOf<typename decltype(tag)::type>(call); });
}

void GradApply(const Call& call) {
  VisitFloating(call.inputs[0].dtype(), "channel_norm_grad_apply",
                [&](auto tag) { GradApplyOf<typename decltype(tag)::type>(call); });
}

const RegisterKernel kRegister[] = {
    {kChannelNorm, DeviceType::kCpu, Norm},
    {kChannelMean, DeviceType::kCpu, Mean},
    {kChannelVariance, DeviceType::kCpu, Variance},
    {kChannelNormApply, DeviceType::kCpu, Apply},
    {kChannelNormGrad, DeviceType::kCpu, Grad},
    {kChannelNormGradSums, DeviceType::kCpu, GradSums},
    {kChannelNormGradApply, DeviceType::kCpu, GradApply},
};

}  // namespace
}  // namespace weft

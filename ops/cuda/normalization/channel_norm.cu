#include <cuda_runtime.h>

#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/cuda/blocks/reduce_block.h"
#include "ops/cuda/blocks/row_loop.h"
#include "ops/cuda/blocks/row_tensors.h"
#include "ops/cuda/normalization/channel_rows.h"
#include "ops/cuda/reduce/sum_along.h"
#include "ops/normalization/channel_norm.h"
#include "ops/normalization/channel_norm_grad.h"
#include "ops/op/kernel.h"
#include "runtime/tensor/cuda/grid_loop.h"

namespace weft {
namespace {

using Call = KernelCall<ChannelNormAttributes, NoScalars>;
// The unit of all sums is a row: one channel of one image, contiguous. Batch and group norm differ in which
// rows share a statistic, so a second, small step adds rows up, and the passes over x know no difference.
using Rows = ChannelRowsOnGpu;

template <class C>
__global__ void RstdKernel(Rows rows, const C* variance, C* rstd) {
  ForEachOfGrid(rows.num_statistics(), [&](int64_t s) {
    rstd[s] = static_cast<C>(1 / sqrt(static_cast<double>(variance[s]) + rows.eps));
  });
}

// means[statistic] = (sum over its rows of weight[channel] * sums[row]) / count; no weights: 1. A warp a
// statistic.
// The sums of rows come as doubles and are rounded to C once, as means.
template <class C>
struct StatisticRow {
  using Element = double;

  template <class Threads>
  __device__ void operator()(const Threads& threads, int64_t statistic) const {
    const Rows::Rows own = rows.RowsOf(statistic);
    double sum = 0;
    for (int64_t i = threads.rank(); i < own.num; i += Threads::kSize) {
      const int64_t row = own.first + i * own.step;
      sum += (weight == nullptr ? 1.0 : static_cast<double>(weight[rows.Channel(row)])) * sums[row];
    }
    sum = threads.Sum(sum);
    if (threads.rank() == 0) means[statistic] = static_cast<C>(rows.count == 0 ? 0 : sum / rows.count);
  }

  Rows rows;
  const double* sums;
  const C* weight;
  C* means;
};

// to[channel] = sum over images of sums[row].
// Neighbouring threads read neighbouring channels, and each adds its images in their order.
template <class T>
__global__ void SumImagesKernel(Rows rows, const double* sums, T* to) {
  ForEachOfGrid(rows.c, [&](int64_t channel) {
    double total = 0;
#pragma unroll 4
    for (int64_t image = 0; image < rows.n; ++image) total += sums[image * rows.c + channel];
    to[channel] = static_cast<T>(static_cast<WideOf<T>>(total));
  });
}

// to[row] = statistics[of the row].
// For the variance's pass, which wants one centre per row: SumAlong knows no channels.
template <class C>
__global__ void SpreadKernel(Rows rows, const C* statistics, C* to) {
  ForEachOfGrid(rows.num_rows(), [&](int64_t row) { to[row] = statistics[rows.Statistic(row)]; });
}

// sums[row] = sum dy; dots[row] = sum dy * (x - mean) * rstd.
// One pass over x and dy gives both, so rows are not held. rstd is the row's own number and comes in at the
// end.
template <class T>
struct GradSumsRow {
  using Element = T;
  using C = WideOf<T>;

  template <class Threads>
  __device__ void operator()(const Threads& threads, int64_t row) const {
    const int64_t n = rows.elements;
    const int64_t s = rows.Statistic(row);
    const C row_mean = mean[s];
    double sum = 0;
    double dot = 0;
    ForEachPack<T>(threads, n, [&](int, int64_t i) {
      const RowPack<T> v = LoadPack(x + row * n, i, n);
      const RowPack<T> d = LoadPack(dy + row * n, i, n);
      C pack_sum = 0;
      C pack_dot = 0;
#pragma unroll
      for (int j = 0; j < RowPack<T>::kSize; ++j) {
        if (i + j >= n) continue;
        pack_sum += static_cast<C>(d.values[j]);
        pack_dot += static_cast<C>(d.values[j]) * (static_cast<C>(v.values[j]) - row_mean);
      }
      sum += static_cast<double>(pack_sum);
      dot += static_cast<double>(pack_dot);
    });
    sum = threads.Sum(sum);
    dot = threads.Sum(dot);
    if (threads.rank() != 0) return;
    sums[row] = sum;
    dots[row] = dot * static_cast<double>(rstd[s]);
  }

  Rows rows;
  const T* x;
  const T* dy;
  const C* mean;
  const C* rstd;
  double* sums;
  double* dots;
};

// Calls body(row, i) for the packs of all rows, from element i of the row on, a thread each.
// A row's end need not be a pack's: packs begin anew in each row, so that one pack has one statistic.
template <class T, class Body>
__device__ void ForEachRowPack(const Rows& rows, const Body& body) {
  const int64_t packs = (rows.elements + RowPack<T>::kSize - 1) / RowPack<T>::kSize;
  ForEachOfGrid(rows.num_rows() * packs, [&](int64_t at) {
    const int64_t row = at / packs;
    body(row, (at - row * packs) * RowPack<T>::kSize);
  });
}

// y = (x - mean) * rstd * w + b.
template <class T>
__global__ void ApplyKernel(Rows rows, const T* x, const WideOf<T>* w, const WideOf<T>* b,
                            const WideOf<T>* mean, const WideOf<T>* rstd, T* y) {
  using C = WideOf<T>;
  ForEachRowPack<T>(rows, [&](int64_t row, int64_t i) {
    const int64_t n = rows.elements;
    const int64_t channel = rows.Channel(row);
    const int64_t s = rows.Statistic(row);
    const C scale = rstd[s] * w[channel];
    RowPack<T> pack = LoadPack(x + row * n, i, n);
#pragma unroll
    for (int j = 0; j < RowPack<T>::kSize; ++j) {
      pack.values[j] = static_cast<T>((static_cast<C>(pack.values[j]) - mean[s]) * scale + b[channel]);
    }
    StorePack(pack, y + row * n, i, n);
  });
}

// dx = rstd * (dy * w - g_mean - (x - mean) * rstd * gh_mean).
// The factors of a row are worked out once per pack of elements: per element two products are left.
template <class T>
__global__ void GradApplyKernel(Rows rows, const T* x, const T* dy, const WideOf<T>* w, const WideOf<T>* mean,
                                const WideOf<T>* rstds, const WideOf<T>* g_mean, const WideOf<T>* gh_mean,
                                T* dx) {
  using C = WideOf<T>;
  ForEachRowPack<T>(rows, [&](int64_t row, int64_t i) {
    const int64_t n = rows.elements;
    const int64_t s = rows.Statistic(row);
    const C rstd = rstds[s];
    const C dy_factor = rstd * w[rows.Channel(row)];
    const C x_factor = -rstd * rstd * gh_mean[s];
    const C constant = -rstd * g_mean[s];
    const RowPack<T> v = LoadPack(x + row * n, i, n);
    RowPack<T> d = LoadPack(dy + row * n, i, n);
#pragma unroll
    for (int j = 0; j < RowPack<T>::kSize; ++j) {
      d.values[j] = static_cast<T>(dy_factor * static_cast<C>(d.values[j]) +
                                   x_factor * (static_cast<C>(v.values[j]) - mean[s]) + constant);
    }
    StorePack(d, dx + row * n, i, n);
  });
}

// One call's operands, and the passes over x that the ops are made of.
template <class T>
class Passes {
 public:
  using C = WideOf<T>;

  explicit Passes(const Call& call)
      : call_(call),
        rows_(call.attributes(), call.input_boxes[0]),
        stream_(KernelStream(call)),
        x_(PackedTensor(call.inputs[0], call.context)) {}

  // A vector or statistic in the compute type, row-major. A statistic has that type already.
  Tensor Numbers(int input) const { return PackedTensor(call_.inputs[input], kDTypeOf<C>, call_.context); }
  Tensor Empty(DType dtype, int64_t count) const {
    return Tensor::Empty(call_.context.allocator, dtype, {count});
  }
  Tensor EmptyStatistic() const { return Empty(kDTypeOf<C>, rows_.num_statistics()); }

  void Means(const Tensor& sums, const C* weight, const Tensor& means) const {
    // Rows of a warp: what a statistic adds up is few numbers.
    LaunchRows(stream_, rows_.num_statistics(), /*n=*/1,
               StatisticRow<C>{rows_, sums.data<double>(), weight, means.data<C>()});
  }
  void Mean(const Tensor& mean) const { Sums({}, mean); }
  void Variance(const Tensor& mean, const Tensor& variance) const {
    const Tensor around = Empty(kDTypeOf<C>, rows_.num_rows());
    if (rows_.num_rows() > 0) {
      LaunchCuda(stream_, GridOver(rows_.num_rows()), SpreadKernel<C>, rows_, mean.data<C>(),
                 around.data<C>());
    }
    Sums({.around = around}, variance);
  }
  Tensor Rstd(const Tensor& variance) const {
    const Tensor rstd = EmptyStatistic();
    if (rows_.num_statistics() > 0) {
      LaunchCuda(stream_, GridOver(rows_.num_statistics()), RstdKernel<C>, rows_, variance.data<C>(),
                 rstd.data<C>());
    }
    return rstd;
  }
  void Apply(const Tensor& w, const Tensor& b, const Tensor& mean, const Tensor& rstd,
             const Tensor& y) const {
    if (y.num_elements() == 0) return;
    LaunchCuda(stream_, Grid(), ApplyKernel<T>, rows_, x_.data<T>(), w.data<C>(), b.data<C>(), mean.data<C>(),
               rstd.data<C>(), y.data<T>());
  }

  // dw and db, and the means by which dx is made, to outputs of their own.
  void GradSums(const Tensor& dy, const Tensor& w, const Tensor& mean, const Tensor& rstd, const Tensor& dw,
                const Tensor& db, const Tensor& g_mean, const Tensor& gh_mean) const {
    const Tensor sums = Empty(DType::kF64, rows_.num_rows());
    const Tensor dots = Empty(DType::kF64, rows_.num_rows());
    LaunchRows(stream_, rows_.num_rows(), rows_.elements,
               GradSumsRow<T>{rows_, x_.data<T>(), dy.data<T>(), mean.data<C>(), rstd.data<C>(),
                              sums.data<double>(), dots.data<double>()});
    Means(sums, w.data<C>(), g_mean);
    Means(dots, w.data<C>(), gh_mean);
    if (rows_.c == 0) return;
    LaunchCuda(stream_, GridOver(rows_.c), SumImagesKernel<T>, rows_, dots.data<double>(), dw.data<T>());
    LaunchCuda(stream_, GridOver(rows_.c), SumImagesKernel<T>, rows_, sums.data<double>(), db.data<T>());
  }
  void GradApply(const Tensor& dy, const Tensor& w, const Tensor& mean, const Tensor& rstd,
                 const Tensor& g_mean, const Tensor& gh_mean, const Tensor& dx) const {
    if (dx.num_elements() == 0) return;
    LaunchCuda(stream_, Grid(), GradApplyKernel<T>, rows_, x_.data<T>(), dy.data<T>(), w.data<C>(),
               mean.data<C>(), rstd.data<C>(), g_mean.data<C>(), gh_mean.data<C>(), dx.data<T>());
  }

 private:
  // The means of the sums of rows.
  void Sums(const SumOptions& options, const Tensor& means) const {
    const Tensor sums = Empty(DType::kF64, rows_.num_rows());
    SumAlong(call_, x_.Reshape({rows_.num_rows(), rows_.elements}), DimMaskOf({1}), sums, options);
    Means(sums, nullptr, means);
  }
  CudaGrid Grid() const {
    return GridOver(rows_.num_rows() * ((rows_.elements + RowPack<T>::kSize - 1) / RowPack<T>::kSize));
  }

  const Call& call_;
  const Rows rows_;
  const CudaStreamRef stream_;
  const Tensor x_;
};

// Calls function(passes) for the dtype of x.
template <class Function>
void VisitPasses(const Call& call, const Function& function) {
  VisitFloating(call.inputs[0].dtype(), "channel_norm",
                [&](auto tag) { function(Passes<typename decltype(tag)::type>(call)); });
}

// Three passes over x: two for the statistics, since E[x^2] - mean^2 cancels, and one that applies them. A
// statistic gathers from rows that are the work of many blocks, so nothing stays in registers in between.
void Norm(const Call& call) {
  VisitPasses(call, [&](const auto& passes) {
    passes.Mean(call.outputs[1]);
    passes.Variance(call.outputs[1], call.outputs[2]);
    passes.Apply(passes.Numbers(1), passes.Numbers(2), call.outputs[1], passes.Rstd(call.outputs[2]),
                 call.outputs[0]);
  });
}

void Mean(const Call& call) {
  VisitPasses(call, [&](const auto& passes) { passes.Mean(call.outputs[0]); });
}

void Variance(const Call& call) {
  VisitPasses(call, [&](const auto& passes) { passes.Variance(passes.Numbers(1), call.outputs[0]); });
}

void Apply(const Call& call) {
  VisitPasses(call, [&](const auto& passes) {
    passes.Apply(passes.Numbers(1), passes.Numbers(2), passes.Numbers(3), passes.Rstd(passes.Numbers(4)),
                 call.outputs[0]);
  });
}

void Grad(const Call& call) {
  const Tensor dy = PackedTensor(call.inputs[4], call.context);
  VisitPasses(call, [&](const auto& passes) {
    const Tensor w = passes.Numbers(1), mean = passes.Numbers(2);
    const Tensor rstd = passes.Rstd(passes.Numbers(3));
    const Tensor g_mean = passes.EmptyStatistic(), gh_mean = passes.EmptyStatistic();
    passes.GradSums(dy, w, mean, rstd, call.outputs[1], call.outputs[2], g_mean, gh_mean);
    passes.GradApply(dy, w, mean, rstd, g_mean, gh_mean, call.outputs[0]);
  });
}

void GradSums(const Call& call) {
  const Tensor dy = PackedTensor(call.inputs[4], call.context);
  VisitPasses(call, [&](const auto& passes) {
    passes.GradSums(dy, passes.Numbers(1), passes.Numbers(2), passes.Rstd(passes.Numbers(3)), call.outputs[0],
                    call.outputs[1], call.outputs[2], call.outputs[3]);
  });
}

void GradApply(const Call& call) {
  const Tensor dy = PackedTensor(call.inputs[4], call.context);
  VisitPasses(call, [&](const auto& passes) {
    passes.GradApply(dy, passes.Numbers(1), passes.Numbers(2), passes.Rstd(passes.Numbers(3)),
                     passes.Numbers(5), passes.Numbers(6), call.outputs[0]);
  });
}

const RegisterKernel kRegister[] = {
    {kChannelNorm, DeviceType::kCuda, Norm},
    {kChannelMean, DeviceType::kCuda, Mean},
    {kChannelVariance, DeviceType::kCuda, Variance},
    {kChannelNormApply, DeviceType::kCuda, Apply},
    {kChannelNormGrad, DeviceType::kCuda, Grad},
    {kChannelNormGradSums, DeviceType::kCuda, GradSums},
    {kChannelNormGradApply, DeviceType::kCuda, GradApply},
};

}  // namespace
}  // namespace weft

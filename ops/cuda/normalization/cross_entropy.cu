#include <cuda_runtime.h>

#include <limits>

#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/cuda/blocks/reduce_block.h"
#include "ops/cuda/blocks/row_exp_sum.h"
#include "ops/cuda/blocks/row_loop.h"
#include "ops/cuda/blocks/row_math.h"
#include "ops/cuda/blocks/row_tensors.h"
#include "ops/normalization/cross_entropy.h"
#include "ops/op/kernel.h"
#include "runtime/tensor/cuda/grid_loop.h"

// A target outside [0, v) that is not ignored cannot be named here, for nobody waits for the device: its
// position makes the loss nan, and its gradient.

namespace weft {
namespace {

using Call = KernelCall<CrossEntropyAttributes, NoScalars>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// What the kernels know of the classes, and of the positions.
struct Classes {
  // Of those, this piece holds [first, first + count).
  int64_t first = 0;
  int64_t count = 0;
  int64_t global = 0;
  int64_t ignore_index = 0;
  double smoothing = 0;
  const int64_t* targets = nullptr;

  __device__ bool Ignores(int64_t row) const { return targets[row] == ignore_index; }
  __device__ bool Lacks(int64_t row) const { return targets[row] < 0 || targets[row] >= global; }
  // Where the row's target stands in this piece: outside [0, count) if it does not.
  __device__ int64_t Column(int64_t row) const { return targets[row] - first; }

  // (1 - e) x[target] + e / v sum x: the part of it that lies in this piece's row `x`.
  template <class T, class Threads>
  __device__ double Picked(const Threads& threads, const HeldRow<T, Threads>& held, const T* x,
                           int64_t row) const {
    using C = WideOf<T>;
    if (Lacks(row)) return kNan;
    double picked = 0;
    if (smoothing > 0) {
      const double sum = SumOverPacks<T, C>(threads, count, [&](int p, int64_t i) {
        return [v = held.At(p, i)](int j) { return ConvertOnDevice<C>(v.values[j]); };
      });
      picked = smoothing / static_cast<double>(global) * threads.Sum(sum);
    }
    // From memory, not from what is held: registers that are indexed by a number of run time would be moved
    // to memory by the compiler, all of them.
    const int64_t column = Column(row);
    if (column >= 0 && column < count) {
      picked += (1 - smoothing) * static_cast<double>(static_cast<C>(x[column]));
    }
    return picked;
  }
};

// Keeps the targets that it points to while the call issues its work.
struct ClassesOfCall {
  ClassesOfCall(const Call& call, const Tensor& target_tensor)
      : targets(PackedTensor(target_tensor, DType::kI64, call.context)) {
    classes.ignore_index = call.attributes().ignore_index;
    classes.smoothing = call.attributes().label_smoothing;
    classes.targets = targets.data<int64_t>();
  }
  // With the classes that the logits, operand 0, are of.
  explicit ClassesOfCall(const Call& call) : ClassesOfCall(call, call.inputs[1]) {
    const ShardBox& box = call.input_boxes[0];
    const int last = box.shape.ndim() - 1;
    classes.first = box.offset[last];
    classes.count = box.shape[last];
    classes.global = box.global_shape[last];
  }

  Tensor targets;
  Classes classes;
};

// lse, and the loss of the position; both 0 where it does not count.
// Probabilities are never written: the loss wants lse and one logit, and backward makes them again from the
// logits and lse. What would be a tensor as large as the logits is a number per position.
template <class T>
struct LossRow {
  using Element = T;
  using C = WideOf<T>;

  template <class Threads>
  __device__ void operator()(const Threads& threads, int64_t row) const {
    double log_sum = 0;
    double loss = 0;
    if (!classes.Ignores(row)) {
      const HeldRow<T, Threads> held(threads, logits[row], classes.count);
      log_sum = ExpSumOfRow<T>(threads, held, classes.count).LogSum();
      // Before lse is rounded to f32: otherwise large logits would cost digits of a small loss.
      loss = log_sum - classes.Picked(threads, held, logits[row], row);
    }
    if (threads.rank() != 0) return;
    lse[row] = static_cast<C>(log_sum);
    losses[row] = loss;
  }

  bool LiesInPacks() const { return RowsLieInPacks<T>(classes.count, logits); }

  DeviceRows<const T> logits;
  Classes classes;
  C* lse;
  double* losses;
};

// One block, not atomics of many: rows are few beside their elements, and the order of the sum is fixed.
constexpr int kSumThreads = 1024;

// The sum of the losses and the number of positions that count: one block.
template <class C>
__global__ void __launch_bounds__(kSumThreads)
    SumLossesKernel(const double* losses, int64_t num_rows, Classes classes, C* loss, C* count) {
  __shared__ double scratch[kMostWarps];
  double loss_sum = 0;
  double num_counted = 0;
#pragma unroll 4
  for (int64_t row = threadIdx.x; row < num_rows; row += kSumThreads) {
    loss_sum += losses[row];
    num_counted += classes.Ignores(row) ? 0.0 : 1.0;
  }
  loss_sum = ReduceBlock(loss_sum, AddValues(), scratch);
  num_counted = ReduceBlock(num_counted, AddValues(), scratch);
  if (threadIdx.x != 0) return;
  *loss = static_cast<C>(loss_sum);
  *count = static_cast<C>(num_counted);
}

// To outputs 0 and 1.
template <class C>
void SumLosses(const Call& call, const Tensor& losses, const Classes& classes) {
  LaunchCuda(KernelStream(call), {.blocks = 1, .threads = kSumThreads}, SumLossesKernel<C>,
             losses.data<double>(), losses.num_elements(), classes, call.outputs[0].data<C>(),
             call.outputs[1].data<C>());
}

void CrossEntropy(const Call& call) {
  const RowTensor logits(call.inputs[0], call.context);
  const ClassesOfCall own(call);
  // In double: the loss of a batch is a sum over all of its positions, rounded once.
  const Tensor losses = Tensor::Empty(call.context.allocator, DType::kF64, {logits.num_rows()});
  VisitFloating(call.inputs[0].dtype(), "cross_entropy", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = WideOf<T>;
    LaunchRows(KernelStream(call), logits.num_rows(), logits.num_columns(),
               LossRow<T>{logits.rows<T>(), own.classes, call.outputs[2].data<C>(), losses.data<double>()});
    SumLosses<C>(call, losses, own.classes);
  });
}

template <class T>
struct LossGradRow {
  using Element = T;
  using C = WideOf<T>;

  template <class Threads>
  __device__ void operator()(const Threads& threads, int64_t row) const {
    const int64_t n = classes.count;
    const bool ignored = classes.Ignores(row);
    const int64_t target = classes.Column(row);
    const C nothing = ignored ? C(0) : static_cast<C>(kNan);
    const bool plain = !ignored && !classes.Lacks(row);
    // The row is read once and not held: softmax needs lse alone here, which forward saved.
    const C shift = lse[row];
    const C scale = *dloss;
    // Worked out once per row: of an element one exponential and one multiply-add are left.
    const C everywhere =
        static_cast<C>(-classes.smoothing / static_cast<double>(classes.global) * static_cast<double>(scale));
    const C at_target = static_cast<C>((1 - classes.smoothing) * static_cast<double>(scale));
    const T* const x = logits[row];
    if (!plain) {
      WritePacks(threads, dlogits[row], n, [&](int, int64_t) { return [=](int) { return nothing; }; });
      return;
    }
    WritePacks(threads, dlogits[row], n, [&](int, int64_t i) {
      // Where the target stands in this pack, or -1. An int, since every element is compared with it.
      const int64_t away = target - i;
      const int hit = away >= 0 && away < RowPack<T>::kSize ? static_cast<int>(away) : -1;
      return [=, v = threads.Load(x, i, n)](int j) {
        const C share = ExpFor<T>(ConvertOnDevice<C>(v.values[j]) - shift) * scale + everywhere;
        return j == hit ? share - at_target : share;
      };
    });
  }

  bool LiesInPacks() const { return RowsLieInPacks<T>(classes.count, logits, dlogits); }

  DeviceRows<const T> logits;
  Classes classes;
  const C* lse;
  const C* dloss;
  DeviceRows<T> dlogits;
};

void CrossEntropyGrad(const Call& call) {
  const RowTensor logits(call.inputs[0], call.context);
  const ClassesOfCall own(call);
  const Tensor lse = PackedTensor(call.inputs[2], call.context);
  VisitFloating(call.inputs[0].dtype(), "cross_entropy_grad", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = WideOf<T>;
    LaunchRows(KernelStream(call), logits.num_rows(), logits.num_columns(),
               LossGradRow<T>{logits.rows<T>(), own.classes, lse.data<C>(), call.inputs[3].data<C>(),
                              OutputRows<T>(call.outputs[0], logits.num_columns())});
  });
}

template <class T>
struct StatisticsRow {
  using Element = T;
  using C = WideOf<T>;

  template <class Threads>
  __device__ void operator()(const Threads& threads, int64_t row) const {
    double sum = 0;
    double part = 0;
    if (!classes.Ignores(row)) {
      const HeldRow<T, Threads> held(threads, logits[row], classes.count);
      const C shift = max[row] == -kInfinityOf<C> ? C(0) : max[row];
      sum = SumOverPacks<T, C>(threads, classes.count, [&](int p, int64_t i) {
        return
            [v = held.At(p, i), shift](int j) { return ExpFor<T>(ConvertOnDevice<C>(v.values[j]) - shift); };
      });
      sum = threads.Sum(sum);
      part = classes.Picked(threads, held, logits[row], row);
    }
    if (threads.rank() != 0) return;
    sumexp[row] = static_cast<C>(sum);
    picked[row] = static_cast<C>(part);
  }

  bool LiesInPacks() const { return RowsLieInPacks<T>(classes.count, logits); }

  DeviceRows<const T> logits;
  Classes classes;
  const C* max;
  C* sumexp;
  C* picked;
};

// Where the classes are split, the maximum is all-reduced first: around it the sums of the pieces add up, and
// the logit of the target is on one of them.
void CrossEntropyStatistics(const Call& call) {
  const RowTensor logits(call.inputs[0], call.context);
  const ClassesOfCall own(call);
  const Tensor max = PackedTensor(call.inputs[2], call.context);
  VisitFloating(call.inputs[0].dtype(), "cross_entropy_statistics", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = WideOf<T>;
    LaunchRows(KernelStream(call), logits.num_rows(), logits.num_columns(),
               StatisticsRow<T>{logits.rows<T>(), own.classes, max.data<C>(), call.outputs[0].data<C>(),
                                call.outputs[1].data<C>()});
  });
}

template <class C>
__global__ void FinishKernel(int64_t num_rows, Classes classes, const C* max, const C* sumexp,
                             const C* picked, C* lse, double* losses) {
  ForEachOfGrid(num_rows, [&](int64_t row) {
    const double log_sum =
        classes.Ignores(row) ? 0 : RowExpSum<C>{max[row], static_cast<double>(sumexp[row])}.LogSum();
    lse[row] = static_cast<C>(log_sum);
    losses[row] = classes.Ignores(row) ? 0 : log_sum - static_cast<double>(picked[row]);
  });
}

void CrossEntropyFinish(const Call& call) {
  const ClassesOfCall own(call, call.inputs[0]);
  const Tensor max = PackedTensor(call.inputs[1], call.context);
  const Tensor sumexp = PackedTensor(call.inputs[2], call.context);
  const Tensor picked = PackedTensor(call.inputs[3], call.context);
  const int64_t num_rows = own.targets.num_elements();
  const Tensor losses = Tensor::Empty(call.context.allocator, DType::kF64, {num_rows});
  VisitFloating(max.dtype(), "cross_entropy_finish", [&](auto tag) {
    using C = WideOf<typename decltype(tag)::type>;
    LaunchCuda(KernelStream(call), GridOver(num_rows), FinishKernel<C>, num_rows, own.classes, max.data<C>(),
               sumexp.data<C>(), picked.data<C>(), call.outputs[2].data<C>(), losses.data<double>());
    SumLosses<C>(call, losses, own.classes);
  });
}

const RegisterKernel kRegister[] = {
    {kCrossEntropy, DeviceType::kCuda, CrossEntropy},
    {kCrossEntropyGrad, DeviceType::kCuda, CrossEntropyGrad},
    {kCrossEntropyStatistics, DeviceType::kCuda, CrossEntropyStatistics},
    {kCrossEntropyFinish, DeviceType::kCuda, CrossEntropyFinish},
};

}  // namespace
}  // namespace weft

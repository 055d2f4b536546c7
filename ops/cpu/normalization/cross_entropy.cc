#include "ops/normalization/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu/spans/indices.h"
#include "ops/cpu/spans/row_view.h"
#include "ops/cpu/spans/rows.h"
#include "ops/op/kernel.h"
#include "runtime/tensor/convert.h"

namespace weft {
namespace {

using Call = KernelCall<CrossEntropyAttributes, NoScalars>;

// The classes that this piece of the logits holds, of all `global`.
struct Classes {
  int64_t first = 0;
  int64_t count = 0;
  int64_t global = 0;
};

Classes ClassesOf(const ShardBox& box) {
  const int last = box.shape.ndim() - 1;
  return {box.offset[last], box.shape[last], box.global_shape[last]};
}

// inputs[1], checked.
Tensor Targets(const Call& call, absl::string_view op) {
  const Tensor targets = DenseIndices(call.inputs[1], call.context);
  CheckIndices(op, "target", targets, call.input_boxes[1], ClassesOf(call.input_boxes[0]).global,
               call.attributes().ignore_index);
  return targets;
}

// (1 - e) x[target] + e / v sum x: the part of it that lies in `x`, which holds `classes`.
// With label smoothing the loss is lse - this, as the smoothed target's products with log-softmax add up to.
// Without it the row's sum is not needed, and the row is read once.
template <class T>
double Picked(const T* x, const Classes& classes, int64_t target, double smoothing) {
  double picked = 0;
  const int64_t column = target - classes.first;
  if (column >= 0 && column < classes.count) picked = (1 - smoothing) * static_cast<double>(x[column]);
  if (smoothing > 0)
    picked += smoothing / static_cast<double>(classes.global) * Rows<T>().sum(x, classes.count);
  return picked;
}

// Losses and counts of blocks of rows, for adding up in order.
struct LossSum {
  double loss = 0;
  double count = 0;
};

// Writes the sums of the blocks to outputs[0] and outputs[1].
template <class C>
void WriteSums(const std::vector<LossSum>& sums, const Call& call) {
  LossSum total;
  for (const LossSum& sum : sums) {
    total.loss += sum.loss;
    total.count += sum.count;
  }
  *call.outputs[0].template data<C>() = static_cast<C>(total.loss);
  *call.outputs[1].template data<C>() = static_cast<C>(total.count);
}

void CrossEntropy(const Call& call) {
  const Tensor targets = Targets(call, "cross_entropy");
  const Classes classes = ClassesOf(call.input_boxes[0]);
  const CrossEntropyAttributes& attributes = call.attributes();
  VisitFloating(call.inputs[0].dtype(), "cross_entropy", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const RowView logits = RowsOf(call.inputs[0], call.context);
    const TypedRows<const T> from = ReadRows<T>(logits);
    const int64_t* target = targets.data<int64_t>();
    C* lse = call.outputs[2].template data<C>();
    // Each block of rows has a sum of its own, added up in order afterwards: the loss has the same bits for
    // any number of threads.
    constexpr int64_t kBlockRows = 4;
    std::vector<LossSum> sums((logits.num_rows + kBlockRows - 1) / kBlockRows);
    call.context.pool.ParallelFor(logits.num_rows, kBlockRows, [&](int64_t begin, int64_t end) {
      LossSum& sum = sums[begin / kBlockRows];
      for (int64_t row = begin; row < end; ++row) {
        lse[row] = 0;
        if (target[row] == attributes.ignore_index) continue;
        const T* const x = from[row];
        const LogSumExp row_lse = Rows<T>().log_sum_exp(x, classes.count);
        // Saved in the compute type, not in T: backward makes the softmax as exp(x - lse), where an error of
        // lse is a relative error of every probability.
        lse[row] = static_cast<C>(row_lse.Value());
        // Before lse is rounded to f32: otherwise large logits would cost digits of a small loss.
        sum.loss += row_lse.Value() - Picked(x, classes, target[row], attributes.label_smoothing);
        sum.count += 1;
      }
    });
    WriteSums<C>(sums, call);
  });
}

void CrossEntropyGrad(const Call& call) {
  const Tensor targets = Targets(call, "cross_entropy_grad");
  const Tensor lse = Dense(call.inputs[2], call.context);
  const Classes classes = ClassesOf(call.input_boxes[0]);
  const CrossEntropyAttributes& attributes = call.attributes();
  VisitFloating(call.inputs[0].dtype(), "cross_entropy_grad", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const RowView logits = RowsOf(call.inputs[0], call.context);
    const int64_t* target = targets.data<int64_t>();
    const C dloss = *call.inputs[3].template data<C>();
    const double smoothing = attributes.label_smoothing;
    // d loss / dx = softmax(x) - (1 - e) [at the target] - e / v, all times dloss: one pass, with the softmax
    // made from lse.
    const C everywhere = static_cast<C>(-smoothing / static_cast<double>(classes.global) * dloss);
    const C at_target = static_cast<C>((1 - smoothing) * dloss);
    const C* shifts = lse.data<C>();
    const TypedRows<const T> from = ReadRows<T>(logits);
    const TypedRows<T> to = WriteRows<T>(call.outputs[0], classes.count);
    ParallelForRows(call.context, logits.num_rows, classes.count, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* const dx = to[row];
        if (target[row] == attributes.ignore_index) {
          std::fill(dx, dx + classes.count, T(0));
          continue;
        }
        // The whole row as if the target were elsewhere, then one element anew: no comparison of the column
        // with the target in the loop.
        Rows<T>().exp_affine(from[row], classes.count, shifts[row], dloss, everywhere, dx);
        const int64_t column = target[row] - classes.first;
        if (column < 0 || column >= classes.count) continue;
        // Anew, for dx may be rounded to a half already: at a probability near 1 that would be all of it.
        const C x = static_cast<C>(from[row][column]);
        C share = 0;
        Rows<C>().exp_affine(&x, 1, shifts[row], dloss, everywhere, &share);
        dx[column] = ConvertElement<T>(share - at_target);
      }
    });
  });
}

// Where classes are split, a rank holds some of a row's logits. With the maximum of the whole row as shift,
// the sums of exponentials add up as they are, and the target's logit comes from the one rank that has it:
// numbers per row are all-reduced, and no logits.
void CrossEntropyStatistics(const Call& call) {
  const Tensor targets = Targets(call, "cross_entropy");
  const Tensor max = Dense(call.inputs[2], call.context);
  const Classes classes = ClassesOf(call.input_boxes[0]);
  const CrossEntropyAttributes& attributes = call.attributes();
  VisitFloating(call.inputs[0].dtype(), "cross_entropy_statistics", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const RowView logits = RowsOf(call.inputs[0], call.context);
    const TypedRows<const T> from = ReadRows<T>(logits);
    const int64_t* target = targets.data<int64_t>();
    C* sumexp = call.outputs[0].template data<C>();
    C* picked = call.outputs[1].template data<C>();
    ParallelForRows(call.context, logits.num_rows, classes.count, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        sumexp[row] = 0;
        picked[row] = 0;
        if (target[row] == attributes.ignore_index) continue;
        const T* const x = from[row];
        sumexp[row] = static_cast<C>(Rows<T>().exp_sum(x, classes.count, max.data<C>()[row]));
        picked[row] = static_cast<C>(Picked(x, classes, target[row], attributes.label_smoothing));
      }
    });
  });
}

void CrossEntropyFinish(const Call& call) {
  const Tensor targets = DenseIndices(call.inputs[0], call.context);
  const Tensor max = Dense(call.inputs[1], call.context);
  const Tensor sumexp = Dense(call.inputs[2], call.context);
  const Tensor picked = Dense(call.inputs[3], call.context);
  VisitFloating(max.dtype(), "cross_entropy_finish", [&](auto tag) {
    using C = ComputeType<typename decltype(tag)::type>;
    C* lse = call.outputs[2].template data<C>();
    // In the order of rows, in double. There is no more to do than a log per row: the elements
    // were summed before.
    LossSum sum;
    for (int64_t i = 0; i < targets.num_elements(); ++i) {
      lse[i] = 0;
      if (targets.data<int64_t>()[i] == call.attributes().ignore_index) continue;
      const LogSumExp row = {max.data<C>()[i], sumexp.data<C>()[i]};
      lse[i] = static_cast<C>(row.Value());
      sum.loss += row.Value() - static_cast<double>(picked.data<C>()[i]);
      sum.count += 1;
    }
    WriteSums<C>({sum}, call);
  });
}

const RegisterKernel kRegister(kCrossEntropy, DeviceType::kCpu, CrossEntropy);
const RegisterKernel kRegisterGrad(kCrossEntropyGrad, DeviceType::kCpu, CrossEntropyGrad);
const RegisterKernel kRegisterStatistics(kCrossEntropyStatistics, DeviceType::kCpu, CrossEntropyStatistics);
const RegisterKernel kRegisterFinish(kCrossEntropyFinish, DeviceType::kCpu, CrossEntropyFinish);

}  // namespace
}  // namespace weft

#include "ops/reduce/row_reductions.h"

#include "ops/cpu/spans/row_view.h"
#include "ops/cpu/spans/rows.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

using Call = KernelCall<NoAttributes, NoScalars>;

// outputs[0][row] = of(row of inputs[0], row number), of any floating type.
template <class Of>
void ReduceRows(const Call& call, absl::string_view what, const Of& of) {
  VisitFloating(call.inputs[0].dtype(), what, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const RowView x = RowsOf(call.inputs[0], call.context);
    const TypedRows<const T> from = ReadRows<T>(x);
    C* y = call.outputs[0].template data<C>();
    ParallelForRows(call.context, x.num_rows, x.num_columns, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) y[row] = static_cast<C>(of(from[row], row));
    });
  });
}

// The same where `of` also takes the row's element of inputs[1].
// The element comes from an op before this one, on whole rows: a mean or a maximum that was all-reduced.
template <class Of>
void ReduceRowsAround(const Call& call, absl::string_view what, const Of& of) {
  const Tensor around = Dense(call.inputs[1], call.context);
  ReduceRows(call, what,
             [&]<class T>(const T* x, int64_t row) { return of(x, around.data<ComputeType<T>>()[row]); });
}

int64_t LocalColumns(const Call& call) { return call.inputs[0].shape()[call.inputs[0].ndim() - 1]; }

// A sum over the global extent, so that the pieces of a split row add up to the mean.
// These are the statistics of rows that are split: each rank reduces its piece, and the op's rule makes the
// result Partial, so the collective carries one number per row.
double DividedByGlobalColumns(double sum, const Call& call) {
  const int64_t n = call.input_boxes[0].global_shape[call.inputs[0].ndim() - 1];
  return n == 0 ? 0 : sum / static_cast<double>(n);
}

void RowMax(const Call& call) {
  const int64_t n = LocalColumns(call);
  ReduceRows(call, "row_max", [n]<class T>(const T* x, int64_t) { return Rows<T>().max(x, n); });
}

void RowSum(const Call& call) {
  const int64_t n = LocalColumns(call);
  ReduceRows(call, "row_sum", [n]<class T>(const T* x, int64_t) { return Rows<T>().sum(x, n); });
}

void RowMean(const Call& call) {
  const int64_t n = LocalColumns(call);
  ReduceRows(call, "row_mean", [&, n]<class T>(const T* x, int64_t) {
    return DividedByGlobalColumns(Rows<T>().sum(x, n), call);
  });
}

void RowMeanSquare(const Call& call) {
  const int64_t n = LocalColumns(call);
  ReduceRows(call, "row_mean_square", [&, n]<class T>(const T* x, int64_t) {
    return DividedByGlobalColumns(Rows<T>().dot(x, x, n), call);
  });
}

// Around the mean of the whole row, so that squares of pieces add up as they are. Merging each
// piece's own mean and squares (Chan, Golub and LeVeque) would spare an all-reduce, but is no sum
// that a collective knows.
void RowVariance(const Call& call) {
  const int64_t n = LocalColumns(call);
  ReduceRowsAround(call, "row_variance", [&, n]<class T>(const T* x, ComputeType<T> mean) {
    return DividedByGlobalColumns(Rows<T>().centered_squares(x, n, mean), call);
  });
}

void RowExpSum(const Call& call) {
  const int64_t n = LocalColumns(call);
  ReduceRowsAround(call, "row_exp_sum",
                   [n]<class T>(const T* x, ComputeType<T> max) { return Rows<T>().exp_sum(x, n, max); });
}

void RowDot(const Call& call) {
  VisitFloating(call.inputs[0].dtype(), "row_dot", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const RowView a = RowsOf(call.inputs[0], call.context);
    const RowView b = RowsOf(call.inputs[1], call.context);
    const TypedRows<const T> from_a = ReadRows<T>(a);
    const TypedRows<const T> from_b = ReadRows<T>(b);
    C* y = call.outputs[0].template data<C>();
    ParallelForRows(call.context, a.num_rows, a.num_columns, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        y[row] = static_cast<C>(Rows<T>().dot(from_a[row], from_b[row], a.num_columns));
      }
    });
  });
}

const RegisterKernel kRegisterMax(kRowMax, DeviceType::kCpu, RowMax);
const RegisterKernel kRegisterSum(kRowSum, DeviceType::kCpu, RowSum);
const RegisterKernel kRegisterDot(kRowDot, DeviceType::kCpu, RowDot);
const RegisterKernel kRegisterExpSum(kRowExpSum, DeviceType::kCpu, RowExpSum);
const RegisterKernel kRegisterMean(kRowMean, DeviceType::kCpu, RowMean);
const RegisterKernel kRegisterMeanSquare(kRowMeanSquare, DeviceType::kCpu, RowMeanSquare);
const RegisterKernel kRegisterVariance(kRowVariance, DeviceType::kCpu, RowVariance);

}  // namespace
}  // namespace weft

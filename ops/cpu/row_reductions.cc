#include "ops/row_reductions.h"

#include "ops/cpu/row_view.h"
#include "ops/cpu/rows.h"
#include "ops/kernel.h"

namespace weft {
namespace {

using Call = KernelCall<NoAttributes, NoScalars>;

// outputs[0][row] = of(row of inputs[0], row number), of any floating type. `of` is generic in the compute
// type.
template <class Of>
void ReduceRows(const Call& call, absl::string_view what, const Of& of) {
  VisitFloating(call.inputs[0].dtype(), what, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const RowView x = RowsOf(call.inputs[0], call.context);
    C* y = call.outputs[0].template data<C>();
    ParallelForRows(call.context, x.num_rows, x.num_columns, [&](int64_t begin, int64_t end) {
      RowReader<T> reader(x);
      for (int64_t row = begin; row < end; ++row) y[row] = static_cast<C>(of(reader.Read(row), row));
    });
  });
}

// The same where `of` also takes the row's element of inputs[1].
template <class Of>
void ReduceRowsAround(const Call& call, absl::string_view what, const Of& of) {
  const Tensor around = Dense(call.inputs[1], call.context);
  ReduceRows(call, what, [&]<class C>(const C* x, int64_t row) { return of(x, around.data<C>()[row]); });
}

int64_t LocalColumns(const Call& call) { return call.inputs[0].shape()[call.inputs[0].ndim() - 1]; }

// A sum over the global extent, so that the pieces of a split row add up to the mean.
double DividedByGlobalColumns(double sum, const Call& call) {
  const int64_t n = call.input_boxes[0].global_shape[call.inputs[0].ndim() - 1];
  return n == 0 ? 0 : sum / static_cast<double>(n);
}

void RowMax(const Call& call) {
  const int64_t n = LocalColumns(call);
  ReduceRows(call, "row_max", [n]<class C>(const C* x, int64_t) { return Rows<C>().max(x, n); });
}

void RowSum(const Call& call) {
  const int64_t n = LocalColumns(call);
  ReduceRows(call, "row_sum", [n]<class C>(const C* x, int64_t) { return Rows<C>().sum(x, n); });
}

void RowMean(const Call& call) {
  const int64_t n = LocalColumns(call);
  ReduceRows(call, "row_mean", [&, n]<class C>(const C* x, int64_t) {
    return DividedByGlobalColumns(Rows<C>().sum(x, n), call);
  });
}

void RowMeanSquare(const Call& call) {
  const int64_t n = LocalColumns(call);
  ReduceRows(call, "row_mean_square", [&, n]<class C>(const C* x, int64_t) {
    return DividedByGlobalColumns(Rows<C>().dot(x, x, n), call);
  });
}

void RowVariance(const Call& call) {
  const int64_t n = LocalColumns(call);
  ReduceRowsAround(call, "row_variance", [&, n]<class C>(const C* x, C mean) {
    return DividedByGlobalColumns(Rows<C>().centered_squares(x, n, mean), call);
  });
}

void RowExpSum(const Call& call) {
  const int64_t n = LocalColumns(call);
  ReduceRowsAround(call, "row_exp_sum",
                   [n]<class C>(const C* x, C max) { return Rows<C>().exp_sum(x, n, max); });
}

void RowDot(const Call& call) {
  VisitFloating(call.inputs[0].dtype(), "row_dot", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const RowView a = RowsOf(call.inputs[0], call.context);
    const RowView b = RowsOf(call.inputs[1], call.context);
    C* y = call.outputs[0].template data<C>();
    ParallelForRows(call.context, a.num_rows, a.num_columns, [&](int64_t begin, int64_t end) {
      RowReader<T> read_a(a);
      RowReader<T> read_b(b);
      for (int64_t row = begin; row < end; ++row) {
        y[row] = static_cast<C>(Rows<C>().dot(read_a.Read(row), read_b.Read(row), a.num_columns));
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

#include "ops/normalization/softmax.h"

#include <cmath>
#include <type_traits>
#include <vector>

#include "ops/cpu/spans/row_view.h"
#include "ops/cpu/spans/rows.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

using Call = KernelCall<NoAttributes, NoScalars>;

// Every row of the output: make(row number, row of the input, n, row of the output).
template <class Make>
void MakeRows(const Call& call, absl::string_view what, const Make& make) {
  VisitFloating(call.inputs[0].dtype(), what, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const RowView x = RowsOf(call.inputs[0], call.context);
    const int64_t n = x.num_columns;
    const TypedRows<const T> from = ReadRows<T>(x);
    const TypedRows<T> to = WriteRows<T>(call.outputs[0], n);
    ParallelForRows(call.context, x.num_rows, n, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) make(row, from[row], n, to[row]);
    });
  });
}

// The same with the rows of two inputs.
template <class Make>
void MakeRowsOfTwo(const Call& call, absl::string_view what, const Make& make) {
  VisitFloating(call.inputs[0].dtype(), what, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const RowView a = RowsOf(call.inputs[0], call.context);
    const RowView b = RowsOf(call.inputs[1], call.context);
    const int64_t n = a.num_columns;
    const TypedRows<const T> from_a = ReadRows<T>(a);
    const TypedRows<const T> from_b = ReadRows<T>(b);
    const TypedRows<T> to = WriteRows<T>(call.outputs[0], n);
    ParallelForRows(call.context, a.num_rows, n, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) make(row, from_a[row], from_b[row], n, to[row]);
    });
  });
}

// Three readings of a row, the first from memory and the others from cache: maximum, exponentials with their
// sum, division. The online form would read it twice, but take two exponentials per element instead of one.
void Softmax(const Call& call) {
  VisitFloating(call.inputs[0].dtype(), "softmax", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const RowView x = RowsOf(call.inputs[0], call.context);
    const int64_t n = x.num_columns;
    const TypedRows<const T> from = ReadRows<T>(x);
    const TypedRows<T> to = WriteRows<T>(call.outputs[0], n);
    ParallelForRows(call.context, x.num_rows, n, [&](int64_t begin, int64_t end) {
      // Exponentials wait for their sum in y itself, or of halves in floats: a half that was rounded before
      // the division would be rounded twice.
      std::vector<C> scratch(std::is_same_v<T, C> ? 0 : n + kRowScratch);
      for (int64_t row = begin; row < end; ++row) Rows<T>().softmax(from[row], n, scratch.data(), to[row]);
    });
  });
}

// log_sum_exp is one reading of the row. Its shift follows the maximum from afar, but what it returns refers
// to the maximum itself.
void LogSoftmax(const Call& call) {
  MakeRows(call, "log_softmax", []<class T>(int64_t, const T* x, int64_t n, T* y) {
    using C = ComputeType<T>;
    // (x - max) - log(sum), in this order: max + log(sum) as one number would round away digits of a sum
    // beside a large maximum.
    const LogSumExp lse = Rows<T>().log_sum_exp(x, n);
    Rows<T>().affine(x, n, static_cast<C>(lse.max), /*scale=*/1, static_cast<C>(-std::log(lse.sum)), y);
  });
}

// dx = y (dy - sum y dy): the transposed Jacobian diag(y) - y y^T without the n x n matrix.
// From y alone, which forward made, so that x need not be saved.
void SoftmaxGrad(const Call& call) {
  MakeRowsOfTwo(call, "softmax_grad", []<class T>(int64_t, const T* y, const T* dy, int64_t n, T* dx) {
    const RowFunctions<T>& rows = Rows<T>();
    rows.softmax_grad(y, dy, n, static_cast<ComputeType<T>>(rows.dot(y, dy, n)), dx);
  });
}

// dx = dy - exp(y) sum dy: exp(y) is the softmax, so x need not be saved.
void LogSoftmaxGrad(const Call& call) {
  MakeRowsOfTwo(call, "log_softmax_grad", []<class T>(int64_t, const T* y, const T* dy, int64_t n, T* dx) {
    const RowFunctions<T>& rows = Rows<T>();
    rows.log_softmax_grad(y, dy, n, static_cast<ComputeType<T>>(rows.sum(dy, n)), dx);
  });
}

// The last steps of rows that are split: the statistics, or the sum that backward needs, are the whole row's,
// and each rank finishes its piece.
// The shift is the maximum of the whole row, so no exponential exceeds 1 on any rank.
void SoftmaxApply(const Call& call) {
  const Tensor max = Dense(call.inputs[1], call.context);
  const Tensor sum = Dense(call.inputs[2], call.context);
  MakeRows(call, "softmax_apply", [&]<class T>(int64_t row, const T* x, int64_t n, T* y) {
    using C = ComputeType<T>;
    Rows<T>().exp_affine(x, n, max.data<C>()[row], 1 / sum.data<C>()[row], /*bias=*/0, y);
  });
}

void LogSoftmaxApply(const Call& call) {
  const Tensor max = Dense(call.inputs[1], call.context);
  const Tensor sum = Dense(call.inputs[2], call.context);
  MakeRows(call, "log_softmax_apply", [&]<class T>(int64_t row, const T* x, int64_t n, T* y) {
    using C = ComputeType<T>;
    Rows<T>().affine(x, n, max.data<C>()[row], /*scale=*/1, -std::log(sum.data<C>()[row]), y);
  });
}

void SoftmaxGradApply(const Call& call) {
  const Tensor sum = Dense(call.inputs[2], call.context);
  MakeRowsOfTwo(call, "softmax_grad_apply",
                [&]<class T>(int64_t row, const T* y, const T* dy, int64_t n, T* dx) {
                  Rows<T>().softmax_grad(y, dy, n, sum.data<ComputeType<T>>()[row], dx);
                });
}

void LogSoftmaxGradApply(const Call& call) {
  const Tensor sum = Dense(call.inputs[2], call.context);
  MakeRowsOfTwo(call, "log_softmax_grad_apply",
                [&]<class T>(int64_t row, const T* y, const T* dy, int64_t n, T* dx) {
                  Rows<T>().log_softmax_grad(y, dy, n, sum.data<ComputeType<T>>()[row], dx);
                });
}

const RegisterKernel kRegisterSoftmax(kSoftmax, DeviceType::kCpu, Softmax);
const RegisterKernel kRegisterLogSoftmax(kLogSoftmax, DeviceType::kCpu, LogSoftmax);
const RegisterKernel kRegisterSoftmaxGrad(kSoftmaxGrad, DeviceType::kCpu, SoftmaxGrad);
const RegisterKernel kRegisterLogSoftmaxGrad(kLogSoftmaxGrad, DeviceType::kCpu, LogSoftmaxGrad);
const RegisterKernel kRegisterSoftmaxApply(kSoftmaxApply, DeviceType::kCpu, SoftmaxApply);
const RegisterKernel kRegisterLogSoftmaxApply(kLogSoftmaxApply, DeviceType::kCpu, LogSoftmaxApply);
const RegisterKernel kRegisterSoftmaxGradApply(kSoftmaxGradApply, DeviceType::kCpu, SoftmaxGradApply);
const RegisterKernel kRegisterLogSoftmaxGradApply(kLogSoftmaxGradApply, DeviceType::kCpu,
                                                  LogSoftmaxGradApply);

}  // namespace
}  // namespace weft

#include "ops/softmax.h"

#include <cmath>

#include "ops/cpu/row_view.h"
#include "ops/cpu/rows.h"
#include "ops/kernel.h"

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
    ParallelForRows(call.context, x.num_rows, n, [&](int64_t begin, int64_t end) {
      RowReader<T> read(x);
      RowWriter<T> write(call.outputs[0], n);
      for (int64_t row = begin; row < end; ++row) {
        make(row, read.Read(row), n, write.Row(row));
        write.Done();
      }
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
    ParallelForRows(call.context, a.num_rows, n, [&](int64_t begin, int64_t end) {
      RowReader<T> read_a(a);
      RowReader<T> read_b(b);
      RowWriter<T> write(call.outputs[0], n);
      for (int64_t row = begin; row < end; ++row) {
        make(row, read_a.Read(row), read_b.Read(row), n, write.Row(row));
        write.Done();
      }
    });
  });
}

void Softmax(const Call& call) {
  MakeRows(call, "softmax", []<class C>(int64_t, const C* x, int64_t n, C* y) {
    const RowFunctions<C>& rows = Rows<C>();
    const double sum = rows.exp_write(x, n, rows.max(x, n), y);
    rows.affine(y, n, /*shift=*/0, static_cast<C>(1 / sum), /*bias=*/0, y);
  });
}

void LogSoftmax(const Call& call) {
  MakeRows(call, "log_softmax", []<class C>(int64_t, const C* x, int64_t n, C* y) {
    const LogSumExp lse = RowLogSumExp(x, n);
    Rows<C>().affine(x, n, static_cast<C>(lse.max), /*scale=*/1, static_cast<C>(-std::log(lse.sum)), y);
  });
}

void SoftmaxGrad(const Call& call) {
  MakeRowsOfTwo(call, "softmax_grad", []<class C>(int64_t, const C* y, const C* dy, int64_t n, C* dx) {
    const RowFunctions<C>& rows = Rows<C>();
    rows.softmax_grad(y, dy, n, static_cast<C>(rows.dot(y, dy, n)), dx);
  });
}

void LogSoftmaxGrad(const Call& call) {
  MakeRowsOfTwo(call, "log_softmax_grad", []<class C>(int64_t, const C* y, const C* dy, int64_t n, C* dx) {
    const RowFunctions<C>& rows = Rows<C>();
    rows.log_softmax_grad(y, dy, n, static_cast<C>(rows.sum(dy, n)), dx);
  });
}

void SoftmaxApply(const Call& call) {
  const Tensor max = Dense(call.inputs[1], call.context);
  const Tensor sum = Dense(call.inputs[2], call.context);
  MakeRows(call, "softmax_apply", [&]<class C>(int64_t row, const C* x, int64_t n, C* y) {
    Rows<C>().exp_affine(x, n, max.data<C>()[row], 1 / sum.data<C>()[row], /*bias=*/0, y);
  });
}

void LogSoftmaxApply(const Call& call) {
  const Tensor max = Dense(call.inputs[1], call.context);
  const Tensor sum = Dense(call.inputs[2], call.context);
  MakeRows(call, "log_softmax_apply", [&]<class C>(int64_t row, const C* x, int64_t n, C* y) {
    Rows<C>().affine(x, n, max.data<C>()[row], /*scale=*/1, -std::log(sum.data<C>()[row]), y);
  });
}

void SoftmaxGradApply(const Call& call) {
  const Tensor sum = Dense(call.inputs[2], call.context);
  MakeRowsOfTwo(call, "softmax_grad_apply",
                [&]<class C>(int64_t row, const C* y, const C* dy, int64_t n, C* dx) {
                  Rows<C>().softmax_grad(y, dy, n, sum.data<C>()[row], dx);
                });
}

void LogSoftmaxGradApply(const Call& call) {
  const Tensor sum = Dense(call.inputs[2], call.context);
  MakeRowsOfTwo(call, "log_softmax_grad_apply",
                [&]<class C>(int64_t row, const C* y, const C* dy, int64_t n, C* dx) {
                  Rows<C>().log_softmax_grad(y, dy, n, sum.data<C>()[row], dx);
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

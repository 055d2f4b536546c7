#include <cuda_runtime.h>

#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/cuda/blocks/row_exp_sum.h"
#include "ops/cuda/blocks/row_loop.h"
#include "ops/cuda/blocks/row_math.h"
#include "ops/cuda/blocks/row_tensors.h"
#include "ops/normalization/softmax.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

using Call = KernelCall<NoAttributes, NoScalars>;

// y = exp(x - max) / sum, or with kLog x - max - log(sum). The statistics are the row's own, or given.
// Rows go by HeldRow: where they fit, the elements stay in registers from the pass that finds the statistics
// to the pass that writes, so memory is read once. The largest element is taken off before exp, which cannot
// overflow then: the usual shift; log_softmax subtracts it before the logarithm of the sum, so that large
// logits keep their digits.
template <class T, bool kLog>
struct SoftmaxRow {
  using Element = T;
  using C = WideOf<T>;

  template <class Threads>
  __device__ void operator()(const Threads& threads, int64_t row) const {
    const HeldRow<T, Threads> in(threads, x[row], n);
    C max, sum;
    if (given_max != nullptr) {
      max = given_max[row];
      sum = given_sum[row];
    } else {
      // Maximum and sum in one pass (row_exp_sum.h): a row too long for registers is read twice, not three
      // times.
      const RowExpSum<C> own = ExpSumOfRow<T>(threads, in, n);
      max = own.max;
      sum = static_cast<C>(own.sum);
    }
    // One logarithm or one division per row; per element a sum or a product.
    const C scale = kLog ? static_cast<C>(-log(static_cast<double>(sum))) : C(1) / sum;
    WritePacks(threads, y[row], n, [&](int p, int64_t i) {
      return [v = in.At(p, i), max, scale](int j) {
        const C centered = ConvertOnDevice<C>(v.values[j]) - max;
        return kLog ? centered + scale : ExpFor<T>(centered) * scale;
      };
    });
  }

  bool LiesInPacks() const { return RowsLieInPacks<T>(n, x, y); }

  DeviceRows<const T> x;
  DeviceRows<T> y;
  int64_t n;
  const C* given_max;  // null: none
  const C* given_sum;
};

// dx = y * (dy - sum y * dy), or with kLog dy - exp(y) * sum dy. The sum is the row's own, or given.
// y is what forward saved: neither x nor its maximum is wanted again. Both operands are held, since the sum
// and dx use them.
template <class T, bool kLog>
struct SoftmaxGradRow {
  using Element = T;
  using C = WideOf<T>;

  template <class Threads>
  __device__ void operator()(const Threads& threads, int64_t row) const {
    const HeldRow<T, Threads> gradients(threads, dy[row], n);
    const HeldRow<T, Threads> values(threads, y[row], n);
    C sum;
    if (given_sum != nullptr) {
      sum = given_sum[row];
    } else {
      // The transposed Jacobian of softmax, diag(y) - y y^T, applied without being made; log_softmax's sum
      // needs dy alone.
      const double own = SumOverPacks<T, C>(threads, n, [&](int p, int64_t i) {
        return [dv = gradients.At(p, i), v = kLog ? RowPack<T>() : values.At(p, i)](int j) {
          const C d = ConvertOnDevice<C>(dv.values[j]);
          return kLog ? d : d * ConvertOnDevice<C>(v.values[j]);
        };
      });
      sum = static_cast<C>(threads.Sum(own));
    }
    WritePacks(threads, dx[row], n, [&](int p, int64_t i) {
      return [v = values.At(p, i), dv = gradients.At(p, i), sum](int j) {
        const C value = ConvertOnDevice<C>(v.values[j]);
        const C d = ConvertOnDevice<C>(dv.values[j]);
        return kLog ? d - ExpFor<T>(value) * sum : value * (d - sum);
      };
    });
  }

  bool LiesInPacks() const { return RowsLieInPacks<T>(n, y, dy, dx); }

  DeviceRows<const T> y;
  DeviceRows<const T> dy;
  DeviceRows<T> dx;
  int64_t n;
  const C* given_sum;  // null: none
};

// `max` and `sum` are undefined where rows are whole: the kernel finds its own. The decomposition of a row
// that is split gives them, all-reduced, and this is its last step.
template <bool kLog>
void MakeSoftmax(const Call& call, const Tensor& max, const Tensor& sum) {
  const RowTensor x(call.inputs[0], call.context);
  const int64_t n = x.num_columns();
  VisitFloating(call.inputs[0].dtype(), "softmax", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = WideOf<T>;
    LaunchRows(KernelStream(call), x.num_rows(), n,
               SoftmaxRow<T, kLog>{x.rows<T>(), OutputRows<T>(call.outputs[0], n), n, DataOrNull<C>(max),
                                   DataOrNull<C>(sum)});
  });
}

template <bool kLog>
void MakeSoftmaxGrad(const Call& call, const Tensor& sum) {
  const RowTensor y(call.inputs[0], call.context);
  const RowTensor dy(call.inputs[1], call.context);
  const int64_t n = y.num_columns();
  VisitFloating(call.inputs[0].dtype(), "softmax_grad", [&](auto tag) {
    using T = typename decltype(tag)::type;
    LaunchRows(KernelStream(call), y.num_rows(), n,
               SoftmaxGradRow<T, kLog>{y.rows<T>(), dy.rows<T>(), OutputRows<T>(call.outputs[0], n), n,
                                       DataOrNull<WideOf<T>>(sum)});
  });
}

template <bool kLog>
void Softmax(const Call& call) {
  MakeSoftmax<kLog>(call, Tensor(), Tensor());
}

template <bool kLog>
void SoftmaxApply(const Call& call) {
  MakeSoftmax<kLog>(call, PackedTensor(call.inputs[1], call.context),
                    PackedTensor(call.inputs[2], call.context));
}

template <bool kLog>
void SoftmaxGrad(const Call& call) {
  MakeSoftmaxGrad<kLog>(call, Tensor());
}

template <bool kLog>
void SoftmaxGradApply(const Call& call) {
  MakeSoftmaxGrad<kLog>(call, PackedTensor(call.inputs[2], call.context));
}

const RegisterKernel kRegister[] = {
    {kSoftmax, DeviceType::kCuda, Softmax<false>},
    {kLogSoftmax, DeviceType::kCuda, Softmax<true>},
    {kSoftmaxGrad, DeviceType::kCuda, SoftmaxGrad<false>},
    {kLogSoftmaxGrad, DeviceType::kCuda, SoftmaxGrad<true>},
    {kSoftmaxApply, DeviceType::kCuda, SoftmaxApply<false>},
    {kLogSoftmaxApply, DeviceType::kCuda, SoftmaxApply<true>},
    {kSoftmaxGradApply, DeviceType::kCuda, SoftmaxGradApply<false>},
    {kLogSoftmaxGradApply, DeviceType::kCuda, SoftmaxGradApply<true>},
};

}  // namespace
}  // namespace weft

#include <cuda_runtime.h>

#include <type_traits>

#include "ops/cuda/blocks/row_pack.h"
#include "ops/cuda/blocks/row_tensors.h"
#include "ops/cuda/reduce/scan_rows.h"
#include "ops/op/kernel.h"
#include "ops/reduce/cum_prod.h"
#include "runtime/tensor/convert.h"
#include "runtime/tensor/cuda/grid_loop.h"

namespace weft {
namespace {

using Call = KernelCall<DimAttributes, NoScalars>;

// Products run in double, or 64 bits unsigned, so that integers wrap. Y is T, or double for what the gradient
// keeps.
template <class T, class Y, bool kExclusive>
struct RunningProduct {
  using Element = T;
  using C = WideOf<T>;
  using Offset = std::conditional_t<std::is_integral_v<T>, T, double>;
  using Total = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;

  __device__ Total Start(int64_t row) const {
    return offsets == nullptr ? Total(1) : static_cast<Total>(offsets[row]);
  }
  __device__ Total Nothing() const { return 1; }
  __device__ Total Lift(T x) const { return static_cast<Total>(static_cast<C>(x)); }
  __device__ Total Combine(Total a, Total b) const { return a * b; }
  __device__ void Emit(int64_t at, Total before, Total after) const {
    const Total total = kExclusive ? before : after;
    if constexpr (std::is_same_v<Y, T>) {
      y[at] = ConvertElement<T>(static_cast<C>(total));
    } else {
      y[at] = static_cast<Y>(total);
    }
  }

  const Offset* offsets;  // one per row, or null for 1
  Y* y;
};

template <bool kExclusive>
void Scan(const Call& call, const Tensor& offsets) {
  VisitDType(call.inputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, uint8_t> || std::is_same_v<T, bool>) {
      WEFT_CHECK(false, "no products of ", DTypeName(call.inputs[0].dtype()));
    } else {
      using Running = RunningProduct<T, T, kExclusive>;
      ScanAlong(call, call.inputs[0], call.attributes().dim, /*reverse=*/false,
                Running{DataOrNull<typename Running::Offset>(offsets), call.outputs[0].data<T>()});
    }
  });
}

void CumProd(const Call& call) { Scan</*kExclusive=*/false>(call, Tensor()); }
void ProductOffsets(const Call& call) { Scan</*kExclusive=*/true>(call, Tensor()); }
void CumProdFrom(const Call& call) {
  Scan</*kExclusive=*/false>(call, PackedTensor(call.inputs[1], call.context));
}

// From the end of each row, a thread per row: the recurrence needs dy beside x, which a scan does not read.
// Neighbouring threads take neighbouring columns.
template <class T>
__global__ void FromTheEndKernel(int64_t rows, int64_t n, int64_t inner, const T* x, const T* dy,
                                 const double* before, T* dx) {
  using C = WideOf<T>;
  ForEachOfGrid(rows, [&](int64_t row) {
    const int64_t base = row / inner * n * inner + row % inner;
    double rest = 0;
    for (int64_t i = n; i-- > 0;) {
      const int64_t at = base + i * inner;
      const double from_here = static_cast<double>(static_cast<C>(dy[at])) + rest;
      dx[at] = ConvertElement<T>(static_cast<C>(before[at] * from_here));
      rest = static_cast<double>(static_cast<C>(x[at])) * from_here;
    }
  });
}

void CumProdGrad(const Call& call) {
  const Tensor& dx = call.outputs[0];
  if (dx.num_elements() == 0) return;
  const int dim = call.attributes().dim;
  const Tensor x = PackedTensor(call.inputs[0], call.context);
  const Tensor dy = PackedTensor(call.inputs[1], call.context);
  const Tensor before = Tensor::Empty(call.context.allocator, DType::kF64, x.shape());
  int64_t inner = 1;
  for (int d = dim + 1; d < x.ndim(); ++d) inner *= x.shape()[d];
  const int64_t n = x.shape()[dim];
  const int64_t rows = x.num_elements() / n;
  VisitFloating(x.dtype(), "cumprod_grad", [&](auto tag) {
    using T = typename decltype(tag)::type;
    ScanAlong(call, x, dim, /*reverse=*/false,
              RunningProduct<T, double, /*kExclusive=*/true>{nullptr, before.data<double>()});
    LaunchCuda(KernelStream(call), GridOver(rows), FromTheEndKernel<T>, rows, n, inner, x.data<T>(),
               dy.data<T>(), before.data<double>(), dx.data<T>());
  });
}

const RegisterKernel kRegister[] = {
    {kCumProd, DeviceType::kCuda, CumProd},
    {kProductOffsets, DeviceType::kCuda, ProductOffsets},
    {kCumProdFrom, DeviceType::kCuda, CumProdFrom},
    {kCumProdGrad, DeviceType::kCuda, CumProdGrad},
};

}  // namespace
}  // namespace weft

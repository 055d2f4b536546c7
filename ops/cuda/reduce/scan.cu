#include <cuda_runtime.h>

#include <type_traits>

#include "ops/cuda/blocks/row_pack.h"
#include "ops/cuda/blocks/row_tensors.h"
#include "ops/cuda/reduce/reduce_dims.h"
#include "ops/cuda/reduce/scan_rows.h"
#include "ops/cuda/reduce/sum_along.h"
#include "ops/op/kernel.h"
#include "ops/reduce/scan.h"
#include "runtime/tensor/convert.h"

namespace weft {
namespace {

using Call = KernelCall<ScanAttributes, NoScalars>;

// Totals run in double, or 64 bits: a total of many elements in T would stop growing when the next element is
// below its last digit.
template <class T, bool kExclusive>
struct RunningSum {
  using Element = T;
  using C = WideOf<T>;
  using Offset = std::conditional_t<std::is_integral_v<T>, T, double>;
  using Total = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;  // unsigned: integers wrap

  __device__ Total Start(int64_t row) const {
    return offsets == nullptr ? Total(0) : static_cast<Total>(offsets[row]);
  }
  __device__ Total Nothing() const { return 0; }
  __device__ Total Lift(T x) const { return static_cast<Total>(static_cast<C>(x)); }
  __device__ Total Combine(Total a, Total b) const { return a + b; }
  __device__ void Emit(int64_t at, Total before, Total after) const {
    y[at] = ConvertElement<T>(static_cast<C>(kExclusive ? before : after));
  }

  const Offset* offsets;  // one per row, or null for 0
  T* y;
};

// y_i with x_i, or with kExclusive without.
template <bool kExclusive>
void Scan(const Call& call, const Tensor& offsets) {
  VisitDType(call.inputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, uint8_t> || std::is_same_v<T, bool>) {
      WEFT_CHECK(false, "no sums of ", DTypeName(call.inputs[0].dtype()));
    } else {
      using Running = RunningSum<T, kExclusive>;
      ScanAlong(call, call.inputs[0], call.attributes().dim, call.attributes().reverse,
                Running{DataOrNull<typename Running::Offset>(offsets), call.outputs[0].data<T>()});
    }
  });
}

// Three ops make a scan along a dim that is split: each piece's total, the totals before each piece, and a
// scan that starts from those.
void CumSum(const Call& call) { Scan</*kExclusive=*/false>(call, Tensor()); }
void PieceOffsets(const Call& call) { Scan</*kExclusive=*/true>(call, Tensor()); }
void CumSumFrom(const Call& call) {
  Scan</*kExclusive=*/false>(call, PackedTensor(call.inputs[1], call.context));
}

// Runs add up in double too, unlike those of SumAlong: a scan of the whole dim has no runs of floats either.
template <class T>
struct TotalOfPiece : SumReduction<T, double> {
  struct Around {};
  __device__ Around Of(int64_t) const { return {}; }
  __device__ void Take(double& run, T x, int64_t, Around) const {
    run += static_cast<double>(static_cast<WideOf<T>>(x));
  }
  __device__ void Write(int64_t result, double sum) const { y[result] = sum; }

  double* y;
};

void PieceTotal(const Call& call) {
  const Tensor& x = call.inputs[0];
  const DimMask dims = DimMaskOf({call.attributes().dim});
  if (!IsFloating(x.dtype())) return SumAlong(call, x, dims, call.outputs[0]);
  VisitFloating(x.dtype(), "piece_total", [&](auto tag) {
    TotalOfPiece<typename decltype(tag)::type> reduction;
    reduction.y = call.outputs[0].data<double>();
    ReduceAlong(call, x, dims, reduction);
  });
}

const RegisterKernel kRegister[] = {
    {kCumSum, DeviceType::kCuda, CumSum},
    {kPieceTotal, DeviceType::kCuda, PieceTotal},
    {kPieceOffsets, DeviceType::kCuda, PieceOffsets},
    {kCumSumFrom, DeviceType::kCuda, CumSumFrom},
};

}  // namespace
}  // namespace weft

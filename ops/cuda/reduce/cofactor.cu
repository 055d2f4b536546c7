#include <cuda_runtime.h>

#include "ops/cuda/blocks/row_tensors.h"
#include "ops/cuda/reduce/reduce_dims.h"
#include "ops/cuda/reduce/scan_rows.h"
#include "ops/op/kernel.h"
#include "ops/reduce/cofactor.h"
#include "runtime/tensor/convert.h"

namespace weft {
namespace {

using Call = KernelCall<DimAttributes, NoScalars>;

template <class T>
struct ProductOfPiece : PlainReduction<T, double> {
  __device__ double NoState() const { return 1; }
  __device__ double NoRun() const { return 1; }
  template <class Around>
  __device__ void Take(double& product, T x, int64_t, Around) const {
    product *= static_cast<double>(x);
  }
  __device__ void Absorb(double& product, double run) const { product *= run; }
  __device__ void Merge(double& product, double other) const { product *= other; }
  __device__ void Write(int64_t result, double product) const { y[result] = product; }

  double* y;
};

void PieceProduct(const Call& call) {
  VisitFloating(call.inputs[0].dtype(), "piece_product", [&](auto tag) {
    ProductOfPiece<typename decltype(tag)::type> reduction;
    reduction.y = call.outputs[0].data<double>();
    ReduceAlong(call, call.inputs[0], DimMaskOf({call.attributes().dim}), reduction);
  });
}

// The products of what stands before each element; from the end, with those the cofactors.
// A quotient of the whole product by the element would be cheaper, and 0 / 0 at the first element that is 0.
// Products from both sides need no division and are exact about zeros.
template <class T, bool kLast>
struct RunningProduct {
  using Element = T;
  using Total = double;

  __device__ double Start(int64_t row) const { return others == nullptr ? 1 : others[row]; }
  __device__ double Nothing() const { return 1; }
  __device__ double Lift(T x) const { return static_cast<double>(x); }
  __device__ double Combine(double a, double b) const { return a * b; }
  __device__ void Emit(int64_t at, double product, double) const {
    if constexpr (kLast) {
      y[at] = ConvertElement<T>(static_cast<WideOf<T>>(before[at] * product));
    } else {
      before[at] = product;
    }
  }

  const double* others;  // one per row, or null for 1
  double* before;
  T* y;
};

void MakeCofactors(const Call& call, const double* others) {
  const Tensor& x = call.inputs[0];
  const int dim = call.attributes().dim;
  // Products of a side stay in double until the other side is there: a product of many elements leaves
  // float's range before the two together are small again.
  const Tensor before = Tensor::Empty(call.context.allocator, DType::kF64, x.shape());
  VisitFloating(x.dtype(), "cofactor", [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* const y = call.outputs[0].data<T>();
    ScanAlong(call, x, dim, /*reverse=*/false,
              RunningProduct<T, false>{others, before.data<double>(), nullptr});
    ScanAlong(call, x, dim, /*reverse=*/true, RunningProduct<T, true>{nullptr, before.data<double>(), y});
  });
}

void Cofactor(const Call& call) { MakeCofactors(call, nullptr); }

void PieceCofactor(const Call& call) {
  const Tensor others = PackedTensor(call.inputs[1], call.context);
  MakeCofactors(call, others.data<double>());
}

const RegisterKernel kRegister[] = {
    {kCofactor, DeviceType::kCuda, Cofactor},
    {kPieceProduct, DeviceType::kCuda, PieceProduct},
    {kTotalsCofactor, DeviceType::kCuda, Cofactor},
    {kPieceCofactor, DeviceType::kCuda, PieceCofactor},
};

}  // namespace
}  // namespace weft

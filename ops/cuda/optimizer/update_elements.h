#ifndef WEFT_OPS_CUDA_OPTIMIZER_UPDATE_ELEMENTS_H_
#define WEFT_OPS_CUDA_OPTIMIZER_UPDATE_ELEMENTS_H_

#include <cuda_runtime.h>

#include <cmath>
#include <map>
#include <type_traits>
#include <utility>
#include <vector>

#include "ops/cuda/blocks/map_elements.h"
#include "ops/cuda/blocks/map_many.h"
#include "ops/op/op.h"
#include "runtime/tensor/copy.h"

// Updates in place: a parameter and its state, from a gradient and a clip factor, one tensor or many.
namespace weft {

// A scalar of f32 or f64 on the device.
// Kernels read it there: the norm of a step is never waited for on the host.
struct DeviceScalar {
  const void* data = nullptr;
  bool is_double = false;

  DeviceScalar() = default;
  explicit DeviceScalar(const Tensor& tensor)
      : data(tensor.data()), is_double(tensor.dtype() == DType::kF64) {}

  __device__ double Get() const {
    return is_double ? *static_cast<const double*>(data) : *static_cast<const float*>(data);
  }
};

// An update of one pass, skipped if the clip factor is not finite. Given is what the host knows of a step;
// its At(factor) makes the step where the rest is known, on the device.
// Whether a step is skipped is decided by each kernel for itself, from the same number, so no state can get
// ahead of another.
template <class Given>
struct Clipped {
  Given given;
  DeviceScalar clip;

  __device__ bool Skips() const {
    const double factor = clip.Get();
    return factor - factor != 0;
  }
  __device__ auto StartAt(int64_t) const { return given.At(clip.Get()); }
};

// Calls `function(TypeTag<P>(), TypeTag<G>(), g)` with the element types of the parameter and of its gradient
// g: as it is in P or in f32, or in halves beside an f32 parameter. Others are first converted, in a pass of
// their own, to what the step computes in: the same bits, and half as many kernels.
template <class Function>
void VisitUpdate(const KernelCallBase& call, const Tensor& g, const Function& function) {
  VisitFloating(call.outputs[0].dtype(), "update", [&](auto p_tag) {
    using P = typename decltype(p_tag)::type;
    using C = ElementValue<P>;
    if (g.dtype() == kDTypeOf<P>) return function(p_tag, p_tag, g);
    if constexpr (std::is_same_v<P, float>) {
      if (g.dtype() == DType::kBF16) return function(p_tag, TypeTag<BFloat16>(), g);
      if (g.dtype() == DType::kF16) return function(p_tag, TypeTag<Float16>(), g);
    }
    function(p_tag, TypeTag<C>(),
             g.dtype() == kDTypeOf<C> ? g : CastTensor(g, kDTypeOf<C>, call.context.allocator));
  });
}

// Whether VisitUpdate takes gradients of dtype `g` beside parameters of `p` as they are.
inline bool TakesGradient(DType p, DType g) {
  return g == p || g == (p == DType::kF64 ? DType::kF64 : DType::kF32) ||
         (p == DType::kF32 && (g == DType::kBF16 || g == DType::kF16));
}

template <class Scalars>
using UpdateKernelCall = KernelCall<NoAttributes, Scalars>;

// An update is a struct that says how much state lies between p and g among the operands, and what the host
// knows of a step:
//   struct SgdUpdate {
//     using Scalars = SgdScalars;
//     static constexpr int kNumState = 0;
//     template <class C> static SgdStep<C> Given(const UpdateKernelCall<Scalars>& call);
//   };
template <class Update>
using UpdateCall = UpdateKernelCall<typename Update::Scalars>;

// The clipped step of a call on elements of P.
template <class Update, class P>
auto ClippedStep(const UpdateCall<Update>& call) {
  const auto given = Update::template Given<ElementValue<P>>(call);
  return Clipped<std::decay_t<decltype(given)>>{given, DeviceScalar(call.inputs[Update::kNumState + 2])};
}

template <class Update>
void UpdateOne(const UpdateCall<Update>& call) {
  VisitUpdate(call, call.inputs[Update::kNumState + 1], [&](auto p_tag, auto g_tag, const Tensor& g) {
    using P = typename decltype(p_tag)::type;
    using G = typename decltype(g_tag)::type;
    [&]<size_t... kState>(std::index_sequence<kState...>) {
      MapOperands(KernelStream(call), call.outputs[0].shape(), ClippedStep<Update, P>(call),
                  Updates<P>{call.outputs[kState]}..., Reads<G>{g});
    }
    (std::make_index_sequence<Update::kNumState + 1>());
  });
}

// One of several operands of one type.
template <class T, size_t>
using UpdatePointer = MapPointer<T, MapUse::kUpdate>;

// Of parameters of P with gradients of G, all contiguous.
template <class Update, class P, class G, size_t... kState>
void UpdateAlike(absl::Span<const KernelCallBase* const> calls, std::index_sequence<kState...>) {
  using Function = decltype(ClippedStep<Update, P>(std::declval<const UpdateCall<Update>&>()));
  MapMany<Function, UpdatePointer<P, kState>..., MapPointer<G, MapUse::kRead>> many(KernelStream(*calls[0]));
  for (const KernelCallBase* base : calls) {
    const UpdateCall<Update> call(*base);
    many.Add(call.outputs[0].num_elements(), ClippedStep<Update, P>(call),
             Updates<P>{call.outputs[kState]}.pointer()...,
             Reads<G>{call.inputs[Update::kNumState + 1]}.pointer());
  }
  many.Finish();
}

// Few launches for each pair of dtypes; what does not lie so is updated by itself.
// A model has many small parameters, whose launches would take longer than their work: the chunks are those
// of Apex's multi_tensor_apply.
template <class Update>
void UpdateMany(absl::Span<const KernelCallBase> calls) {
  const auto gradient = [](const KernelCallBase& call) -> const Tensor& {
    return call.inputs[Update::kNumState + 1];
  };
  std::map<std::pair<DType, DType>, std::vector<const KernelCallBase*>> by_dtypes;
  for (const KernelCallBase& call : calls) {
    const Tensor& g = gradient(call);
    const DType p = call.outputs[0].dtype();
    bool alike = TakesGradient(p, g.dtype()) && g.IsContiguous();
    for (const Tensor& tensor : call.outputs) alike = alike && tensor.IsContiguous();
    if (alike) {
      by_dtypes[{p, g.dtype()}].push_back(&call);
    } else {
      UpdateOne<Update>(UpdateCall<Update>(call));
    }
  }
  for (const auto& [dtypes, alike] : by_dtypes) {
    VisitUpdate(*alike[0], gradient(*alike[0]), [&](auto p_tag, auto g_tag, const Tensor&) {
      UpdateAlike<Update, typename decltype(p_tag)::type, typename decltype(g_tag)::type>(
          alike, std::make_index_sequence<Update::kNumState + 1>());
    });
  }
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_OPTIMIZER_UPDATE_ELEMENTS_H_

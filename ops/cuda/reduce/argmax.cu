#include <cuda_runtime.h>

#include <limits>

#include "ops/cuda/blocks/row_tensors.h"
#include "ops/cuda/reduce/reduce_dims.h"
#include "ops/op/kernel.h"
#include "ops/reduce/argmax.h"
#include "runtime/tensor/convert.h"

namespace weft {
namespace {

using Call = KernelCall<ArgAttributes, NoScalars>;

// Greater than any index: a state that has found nothing loses to every element.
constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

template <class C>
struct FoundElement {
  C value;
  int64_t index;
};

// The index of the extremum: the lowest of several. A NaN comes before all others.
// Value and index travel together through shuffles and shared memory. The order is total (nan first, then the
// value, then the lower index), so merging is associative and the result the same however the row is cut.
template <class T>
struct FindExtremum : PlainReduction<T, FoundElement<WideOf<T>>> {
  using C = WideOf<T>;
  using Found = FoundElement<C>;

  __device__ Found NoState() const { return {C(), kNone}; }
  __device__ Found NoRun() const { return NoState(); }
  template <class Around>
  __device__ void Take(Found& run, T x, int64_t index, Around) const {
    Merge(run, {ConvertElement<C>(x), index});
  }
  __device__ void Absorb(Found& found, const Found& run) const { Merge(found, run); }
  __device__ void Merge(Found& a, const Found& b) const {
    if (IsBefore(b, a)) a = b;
  }
  __device__ void Write(int64_t result, const Found& found) const { y[result] = found.index; }

  __device__ bool IsBefore(const Found& b, const Found& a) const {
    if (a.index == kNone || b.index == kNone) return b.index < a.index;
    const bool nan_a = a.value != a.value;
    const bool nan_b = b.value != b.value;
    if (nan_a != nan_b) return nan_b;
    if (nan_a || a.value == b.value) return b.index < a.index;
    return largest ? b.value > a.value : b.value < a.value;
  }

  int64_t* y;
  bool largest;
};

// The lowest index of a value.
// The second step for a row that is split: the extremum is all-reduced first, then each piece looks for it.
// Equal values are found by ==, NaN by being one: the value that arrives is one of the elements, unchanged.
template <class T>
struct FindValue {
  using C = WideOf<T>;
  using Element = T;
  using State = int64_t;
  using Run = int64_t;
  using Around = C;

  __device__ C Of(int64_t result) const { return ConvertElement<C>(values[result]); }
  __device__ int64_t NoState() const { return kNone; }
  __device__ int64_t NoRun() const { return kNone; }
  __device__ void Take(int64_t& run, T x, int64_t index, C wanted) const {
    const C value = ConvertElement<C>(x);
    if (value == wanted || (value != value && wanted != wanted)) Merge(run, offset + index);
  }
  __device__ void Absorb(int64_t& found, int64_t run) const { Merge(found, run); }
  __device__ void Merge(int64_t& a, int64_t b) const {
    if (b < a) a = b;
  }
  __device__ void Write(int64_t result, int64_t found) const { y[result] = found; }

  const T* values;
  int64_t offset;  // of the piece
  int64_t* y;
};

template <bool kLargest>
void Arg(const Call& call) {
  VisitDType(call.inputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    FindExtremum<T> reduction;
    reduction.y = call.outputs[0].data<int64_t>();
    reduction.largest = kLargest;
    ReduceAlong(call, call.inputs[0], DimMaskOf({call.attributes().dim}), reduction);
  });
}

// In the whole, so that pieces tell where they lie.
void IndexOf(const Call& call) {
  const int dim = call.attributes().dim;
  const Tensor value = PackedTensor(call.inputs[1], call.context);
  VisitDType(call.inputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    ReduceAlong(
        call, call.inputs[0], DimMaskOf({dim}),
        FindValue<T>{value.data<T>(), call.input_boxes[0].offset[dim], call.outputs[0].data<int64_t>()});
  });
}

const RegisterKernel kRegister[] = {
    {kArgMax, DeviceType::kCuda, Arg<true>},
    {kArgMin, DeviceType::kCuda, Arg<false>},
    {kIndexOf, DeviceType::kCuda, IndexOf},
};

}  // namespace
}  // namespace weft

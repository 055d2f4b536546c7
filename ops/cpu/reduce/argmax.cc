#include "ops/reduce/argmax.h"

#include <limits>

#include "ops/cpu/spans/dim_rows.h"
#include "ops/cpu/spans/row_view.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

using Call = KernelCall<ArgAttributes, NoScalars>;

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

DimMask MaskOf(const Call& call) { return DimMaskOf({call.attributes().dim}); }

// Whether `b` comes before `a` whatever their indices: only a NaN does before all others.
// Strict, and rows are searched in ascending order: of equal elements, and of nans, the first stays, in a
// part as in the merge of parts.
template <bool kLargest, class C>
bool Wins(C b, C a) {
  if constexpr (std::is_floating_point_v<C>) {
    if (a != a) return false;
    if (b != b) return true;
  }
  return kLargest ? b > a : b < a;
}

template <class C>
struct Found {
  C value = {};
  int64_t index = kNone;
};

template <bool kLargest>
void Arg(const Call& call) {
  VisitDType(call.inputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ArithmeticType<T>;
    const DimRows rows = RowsAlong(call.inputs[0], MaskOf(call), call.context);
    const auto part = [](const C* x, int64_t n, int64_t, int64_t first) {
      Found<C> found = {x[0], first};
      for (int64_t i = 1; i < n; ++i) {
        if (Wins<kLargest>(x[i], found.value)) found = {x[i], first + i};
      }
      return found;
    };
    const auto merge = [](Found<C>& a, const Found<C>& b) {
      if (Wins<kLargest>(b.value, a.value)) a = b;
    };
    const std::vector<Found<C>> found = ReduceDimRows<T, Found<C>>(call.context, rows, part, merge);
    int64_t* const y = call.outputs[0].template data<int64_t>();
    for (size_t row = 0; row < found.size(); ++row) y[row] = found[row].index;
  });
}

// In the whole, so that pieces tell where they lie.
// Where the dim is split, the extremum was reduced first, and each piece looks for it. kNone is larger than
// any index: the minimum over pieces is the first place in the whole.
void IndexOf(const Call& call) {
  const int64_t offset = call.input_boxes[0].offset[call.attributes().dim];
  const Tensor value = Dense(call.inputs[1], call.context);
  VisitDType(call.inputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ArithmeticType<T>;
    const DimRows rows = RowsAlong(call.inputs[0], MaskOf(call), call.context);
    const T* const values = value.data<T>();
    const auto part = [&](const C* x, int64_t n, int64_t row, int64_t first) {
      const C wanted = ConvertElement<C>(values[row]);
      for (int64_t i = 0; i < n; ++i) {
        if (x[i] == wanted || (x[i] != x[i] && wanted != wanted)) return offset + first + i;
      }
      return kNone;
    };
    const std::vector<int64_t> indices = ReduceDimRows<T, int64_t>(
        call.context, rows, part, [](int64_t& a, int64_t b) { a = std::min(a, b); });
    std::copy(indices.begin(), indices.end(), call.outputs[0].template data<int64_t>());
  });
}

const RegisterKernel kRegister[] = {
    {kArgMax, DeviceType::kCpu, Arg<true>},
    {kArgMin, DeviceType::kCpu, Arg<false>},
    {kIndexOf, DeviceType::kCpu, IndexOf},
};

}  // namespace
}  // namespace weft

#include "ops/reduce/scan.h"

#include <type_traits>
#include <vector>

#include "ops/cpu/spans/dim_rows.h"
#include "ops/cpu/spans/row_view.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

using Call = KernelCall<ScanAttributes, NoScalars>;

DimMask MaskOf(const Call& call) { return DimMaskOf({call.attributes().dim}); }

// What elements of C add up in; unsigned, so that integers wrap.
template <class C>
using Sum = std::conditional_t<std::is_integral_v<C>, uint64_t, double>;

// The total of a piece, and what comes before one: f64 for floating types, integers as they are.
template <class C>
using Offset = std::conditional_t<std::is_integral_v<C>, C, double>;

template <class Function>
void VisitScannable(DType dtype, const Function& function) {
  VisitDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, uint8_t> || std::is_same_v<T, bool>) {
      WEFT_CHECK(false, "no sums of ", DTypeName(dtype));
    } else {
      function(tag);
    }
  });
}

// Where the dim is split: totals of the pieces, then their exclusive scan, gives each piece what stands
// before it, and one number per row is all that ranks exchange.
void PieceTotal(const Call& call) {
  VisitScannable(call.inputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ArithmeticType<T>;
    const DimRows rows = RowsAlong(call.inputs[0], MaskOf(call), call.context);
    const auto part = [](const C* x, int64_t n, int64_t, int64_t) {
      Sum<C> sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += static_cast<Sum<C>>(x[i]);
      return sum;
    };
    const std::vector<Sum<C>> sums =
        ReduceDimRows<T, Sum<C>>(call.context, rows, part, [](Sum<C>& a, Sum<C> b) { a += b; });
    auto* const y = call.outputs[0].template data<Offset<C>>();
    for (size_t row = 0; row < sums.size(); ++row) y[row] = static_cast<Offset<C>>(sums[row]);
  });
}

// Row by row: `offsets` is one number per row, or undefined for 0. Exclusive: y_i without x_i.
// The sum goes on in double and each y is rounded from it: errors of the ys do not add up along the row.
// Within a row it is a chain; rows are what threads share.
template <bool kExclusive>
void Scan(const Call& call, const Tensor& offsets) {
  VisitScannable(call.inputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ArithmeticType<T>;
    const DimRows x_rows = RowsAlong(call.inputs[0], MaskOf(call), call.context);
    const DimRows y_rows = RowsAlong(call.outputs[0], MaskOf(call), call.context);
    const Offset<C>* const starts = offsets.defined() ? offsets.data<Offset<C>>() : nullptr;
    const int64_t n = x_rows.num_columns;
    const bool reverse = call.attributes().reverse;
    ParallelForDimRows(call.context, x_rows.num_rows, n, [&](int64_t begin, int64_t end) {
      DimRowReader<T> reader(x_rows, end);
      DimRowWriter<T> writer(y_rows, end);
      for (int64_t row = begin; row < end; ++row) {
        const C* const x = reader.Read(row);
        C* const y = writer.Row(row);
        Sum<C> sum = starts == nullptr ? 0 : static_cast<Sum<C>>(starts[row]);
        for (int64_t step = 0; step < n; ++step) {
          const int64_t i = reverse ? n - 1 - step : step;
          const Sum<C> before = sum;
          sum += static_cast<Sum<C>>(x[i]);
          y[i] = static_cast<C>(kExclusive ? before : sum);
        }
      }
    });
  });
}

void CumSum(const Call& call) { Scan</*kExclusive=*/false>(call, Tensor()); }
void PieceOffsets(const Call& call) { Scan</*kExclusive=*/true>(call, Tensor()); }
void CumSumFrom(const Call& call) { Scan</*kExclusive=*/false>(call, Dense(call.inputs[1], call.context)); }

const RegisterKernel kRegister[] = {
    {kCumSum, DeviceType::kCpu, CumSum},
    {kPieceTotal, DeviceType::kCpu, PieceTotal},
    {kPieceOffsets, DeviceType::kCpu, PieceOffsets},
    {kCumSumFrom, DeviceType::kCpu, CumSumFrom},
};

}  // namespace
}  // namespace weft

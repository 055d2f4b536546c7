#include "ops/reduce/cum_prod.h"

#include <type_traits>
#include <vector>

#include "ops/cpu/spans/dim_rows.h"
#include "ops/cpu/spans/row_view.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

using Call = KernelCall<DimAttributes, NoScalars>;

// What elements of C multiply in; unsigned, so that integers wrap.
template <class C>
using Product = std::conditional_t<std::is_integral_v<C>, uint64_t, double>;

// What comes before a piece: f64 for floating types, integers as they are.
template <class C>
using Offset = std::conditional_t<std::is_integral_v<C>, C, double>;

// Row by row: `offsets` is one number per row, or undefined for 1. Exclusive: y_i without x_i.
// As in CumSum, the product goes on in double and each y is rounded from it.
template <bool kExclusive>
void Scan(const Call& call, const Tensor& offsets) {
  const DimMask mask = DimMaskOf({call.attributes().dim});
  VisitDType(call.inputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, uint8_t> || std::is_same_v<T, bool>) {
      WEFT_CHECK(false, "no products of ", DTypeName(call.inputs[0].dtype()));
    } else {
      using C = ArithmeticType<T>;
      const DimRows x_rows = RowsAlong(call.inputs[0], mask, call.context);
      const DimRows y_rows = RowsAlong(call.outputs[0], mask, call.context);
      const Offset<C>* const starts = offsets.defined() ? offsets.data<Offset<C>>() : nullptr;
      const int64_t n = x_rows.num_columns;
      ParallelForDimRows(call.context, x_rows.num_rows, n, [&](int64_t begin, int64_t end) {
        DimRowReader<T> reader(x_rows, end);
        DimRowWriter<T> writer(y_rows, end);
        for (int64_t row = begin; row < end; ++row) {
          const C* const x = reader.Read(row);
          C* const y = writer.Row(row);
          auto product = starts == nullptr ? Product<C>(1) : static_cast<Product<C>>(starts[row]);
          for (int64_t i = 0; i < n; ++i) {
            const Product<C> before = product;
            product *= static_cast<Product<C>>(x[i]);
            y[i] = static_cast<C>(kExclusive ? before : product);
          }
        }
      });
    }
  });
}

void CumProd(const Call& call) { Scan</*kExclusive=*/false>(call, Tensor()); }
void ProductOffsets(const Call& call) { Scan</*kExclusive=*/true>(call, Tensor()); }
void CumProdFrom(const Call& call) { Scan</*kExclusive=*/false>(call, Dense(call.inputs[1], call.context)); }

// dx_i = before_i * (dy_i + rest_(i+1)), where before_i is the product of what stands before x_i and
// rest_i = x_i * (dy_i + rest_(i+1)): linear in the row's length. PyTorch divides dy * y, summed from the end,
// by x_i, and treats zeros apart.
void CumProdGrad(const Call& call) {
  const DimMask mask = DimMaskOf({call.attributes().dim});
  const DimRows x_rows = RowsAlong(call.inputs[0], mask, call.context);
  const DimRows dy_rows = RowsAlong(call.inputs[1], mask, call.context);
  const DimRows dx_rows = RowsAlong(call.outputs[0], mask, call.context);
  const int64_t n = x_rows.num_columns;
  VisitFloating(call.outputs[0].dtype(), "cumprod_grad", [&](auto tag) {
    using T = typename decltype(tag)::type;
    ParallelForDimRows(call.context, x_rows.num_rows, n, [&](int64_t begin, int64_t end) {
      DimRowReader<T> x_reader(x_rows, end);
      DimRowReader<T> dy_reader(dy_rows, end);
      DimRowWriter<T> writer(dx_rows, end);
      std::vector<double> before(n);
      for (int64_t row = begin; row < end; ++row) {
        const auto* const x = x_reader.Read(row);
        const auto* const dy = dy_reader.Read(row);
        auto* const dx = writer.Row(row);
        double product = 1;
        for (int64_t i = 0; i < n; ++i) {
          before[i] = product;
          product *= x[i];
        }
        double rest = 0;
        for (int64_t i = n; i-- > 0;) {
          const double from_here = dy[i] + rest;
          dx[i] = static_cast<ArithmeticType<T>>(before[i] * from_here);
          rest = x[i] * from_here;
        }
      }
    });
  });
}

const RegisterKernel kRegister[] = {
    {kCumProd, DeviceType::kCpu, CumProd},
    {kProductOffsets, DeviceType::kCpu, ProductOffsets},
    {kCumProdFrom, DeviceType::kCpu, CumProdFrom},
    {kCumProdGrad, DeviceType::kCpu, CumProdGrad},
};

}  // namespace
}  // namespace weft

#include "ops/reduce/cofactor.h"

#include "ops/cpu/spans/dim_rows.h"
#include "ops/cpu/spans/row_view.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

using Call = KernelCall<DimAttributes, NoScalars>;

DimMask MaskOf(const Call& call) { return DimMaskOf({call.attributes().dim}); }

// In double, since products of floats leave the range of float long before the cofactor does.
void PieceProduct(const Call& call) {
  VisitFloating(call.inputs[0].dtype(), "piece_product", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const DimRows rows = RowsAlong(call.inputs[0], MaskOf(call), call.context);
    const auto part = [](const auto* x, int64_t n, int64_t, int64_t) {
      double product = 1;
      for (int64_t i = 0; i < n; ++i) product *= x[i];
      return product;
    };
    const std::vector<double> products =
        ReduceDimRows<T, double>(call.context, rows, part, [](double& a, double b) { a *= b; });
    std::copy(products.begin(), products.end(), call.outputs[0].template data<double>());
  });
}

// `others` is a number per row, or null for 1.
// The product of what stands before an element times that of what stands after it. The quotient of the whole
// product by the element would be 0 / 0 at a zero, where the gradient is the product of the others.
void MakeCofactors(const Call& call, const double* others) {
  VisitFloating(call.inputs[0].dtype(), "cofactor", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const DimRows x_rows = RowsAlong(call.inputs[0], MaskOf(call), call.context);
    const DimRows y_rows = RowsAlong(call.outputs[0], MaskOf(call), call.context);
    const int64_t n = x_rows.num_columns;
    ParallelForDimRows(call.context, x_rows.num_rows, n, [&](int64_t begin, int64_t end) {
      DimRowReader<T> reader(x_rows, end);
      DimRowWriter<T> writer(y_rows, end);
      // Two readings of the row, and n doubles per task: products from the front are kept until those from
      // the back meet them.
      std::vector<double> before(n);
      for (int64_t row = begin; row < end; ++row) {
        const auto* const x = reader.Read(row);
        auto* const y = writer.Row(row);
        double product = others == nullptr ? 1 : others[row];
        for (int64_t i = 0; i < n; ++i) {
          before[i] = product;
          product *= x[i];
        }
        double after = 1;
        for (int64_t i = n; i-- > 0;) {
          y[i] = static_cast<ArithmeticType<T>>(before[i] * after);
          after *= x[i];
        }
      }
    });
  });
}

void Cofactor(const Call& call) { MakeCofactors(call, nullptr); }

void PieceCofactor(const Call& call) {
  const Tensor others = Dense(call.inputs[1], call.context);
  MakeCofactors(call, others.data<double>());
}

const RegisterKernel kRegister[] = {
    {kCofactor, DeviceType::kCpu, Cofactor},
    {kPieceProduct, DeviceType::kCpu, PieceProduct},
    {kTotalsCofactor, DeviceType::kCpu, Cofactor},
    {kPieceCofactor, DeviceType::kCpu, PieceCofactor},
};

}  // namespace
}  // namespace weft

#include "ops/indexing/sort.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "ops/cpu/indexing/order_keys.h"
#include "ops/cpu/spans/dim_rows.h"
#include "ops/cpu/spans/row_view.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

void Sort(const KernelCall<SortAttributes, NoScalars>& call) {
  const DimMask mask = DimMaskOf({call.attributes().dim});
  const bool descending = call.attributes().descending;
  const DimRows x_rows = RowsAlong(call.inputs[0], mask, call.context);
  const DimRows value_rows = RowsAlong(call.outputs[0], mask, call.context);
  const DimRows index_rows = RowsAlong(call.outputs[1], mask, call.context);
  const int64_t n = x_rows.num_columns;
  VisitDType(call.inputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ArithmeticType<T>;
    ParallelForDimRows(call.context, x_rows.num_rows, n, [&](int64_t begin, int64_t end) {
      DimRowReader<T> reader(x_rows, end);
      DimRowWriter<T> values(value_rows, end);
      DimRowWriter<int64_t> indices(index_rows, end);
      std::vector<Keyed<C>> order(n);
      for (int64_t row = begin; row < end; ++row) {
        const C* const x = reader.Read(row);
        for (int64_t i = 0; i < n; ++i) order[i] = MakeKeyed(x[i], i, descending);
        // Of equal keys the lower index comes first, so this is as good as a stable sort, without its memory.
        // Keys are integers, so nan needs no case in the comparison.
        std::sort(order.begin(), order.end());
        C* const value = values.Row(row);
        int64_t* const index = indices.Row(row);
        for (int64_t i = 0; i < n; ++i) {
          value[i] = x[order[i].index];
          index[i] = order[i].index;
        }
      }
    });
  });
}

// Adds in double and rounds once an element.
void SelectionGrad(const KernelCall<SelectionAttributes, NoScalars>& call) {
  const SelectionAttributes& a = call.attributes();
  const DimMask mask = DimMaskOf({a.dim});
  const DimRows index_rows = RowsAlong(call.inputs[0], mask, call.context);
  const DimRows dy_rows = RowsAlong(call.inputs[1], mask, call.context);
  const DimRows dx_rows = RowsAlong(call.outputs[0], mask, call.context);
  const int64_t first = call.output_boxes[0].offset[a.dim];
  const int64_t n = dx_rows.num_columns;
  const int64_t length = n + dy_rows.num_columns;
  VisitFloating(call.outputs[0].dtype(), "selection_grad", [&](auto tag) {
    using T = typename decltype(tag)::type;
    ParallelForDimRows(call.context, dx_rows.num_rows, length, [&](int64_t begin, int64_t end) {
      DimRowReader<int64_t> indices(index_rows, end);
      DimRowReader<T> gradients(dy_rows, end);
      DimRowWriter<T> writer(dx_rows, end);
      // A row is one task's, so terms add up in the order of the selection, whatever the threads.
      std::vector<double> sums(n);
      for (int64_t row = begin; row < end; ++row) {
        const int64_t* const index = indices.Read(row);
        const auto* const dy = gradients.Read(row);
        std::fill(sums.begin(), sums.end(), 0.0);
        for (int64_t j = 0; j < dy_rows.num_columns; ++j) {
          WEFT_REQUIRE(index[j] >= 0 && index[j] < a.extent, "selection_grad: index ", index[j],
                       " is outside [0, ", a.extent, ")");
          const int64_t i = index[j] - first;
          if (i >= 0 && i < n) sums[i] += dy[j];
        }
        auto* const dx = writer.Row(row);
        for (int64_t i = 0; i < n; ++i) dx[i] = static_cast<ArithmeticType<T>>(sums[i]);
      }
    });
  });
}

const RegisterKernel kRegister(kSort, DeviceType::kCpu, Sort);
const RegisterKernel kRegisterSelection(kSelectionGrad, DeviceType::kCpu, SelectionGrad);

}  // namespace
}  // namespace weft

#include "ops/elementwise/triangle.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/spans/row_view.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

// Every row keeps a run of columns; zero bytes are a zero of every dtype.
// By bytes, one loop for all dtypes, and three calls per row instead of a comparison per element.
void Triangle(const KernelCall<TriangleAttributes, NoScalars>& call) {
  const TriangleAttributes& a = call.attributes();
  const RowView x = RowsOf(call.inputs[0], call.context);
  const ShardBox& box = call.output_boxes[0];
  const int row_dim = box.shape.ndim() - 2;
  const int64_t item = ItemSize(x.tensor.dtype());
  // Beyond the extents all diagonals are alike; a nearer one cannot overflow.
  const int64_t diagonal = std::clamp(a.diagonal, -box.global_shape[row_dim], box.global_shape[row_dim + 1]);
  const char* const from = static_cast<const char*>(x.tensor.data());
  char* const to = static_cast<char*>(call.outputs[0].data());
  ParallelForRows(call.context, x.num_rows, x.num_columns, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t i = box.offset[row_dim] + row % box.shape[row_dim];
      // Column j is kept if j - i <= diagonal (lower), or j - i >= diagonal.
      const int64_t cut = i + diagonal + (a.lower ? 1 : 0) - box.offset[row_dim + 1];
      const int64_t border = std::clamp<int64_t>(cut, 0, x.num_columns);
      const int64_t first = a.lower ? 0 : border;
      const int64_t last = a.lower ? border : x.num_columns;
      char* const out = to + row * x.num_columns * item;
      std::memset(out, 0, first * item);
      std::memcpy(out + first * item, from + (row * x.stride + first) * item, (last - first) * item);
      std::memset(out + last * item, 0, (x.num_columns - last) * item);
    }
  });
}

const RegisterKernel kRegister(kTriangle, DeviceType::kCpu, Triangle);

}  // namespace
}  // namespace weft

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "ops/cuda/blocks/map_elements.h"
#include "ops/elementwise/triangle.h"
#include "ops/op/kernel.h"
#include "runtime/tensor/cuda/visit_word.h"

namespace weft {
namespace {

// Keeps column j of row i where j - i <= diagonal (lower), or j - i >= diagonal; all within the piece. At one
// element, and then at those that follow it.
// A thread divides once per pack to find its first element, then counts on.
struct TriangleWalk {
  int64_t rows, columns;
  int64_t diagonal;
  bool lower;
  int64_t row = 0, column = 0;

  template <class Word>
  __device__ void operator()(Word& y, Word x) {
    const int64_t above = column - row - diagonal;
    // Zero bits are a zero of every dtype.
    y = (lower ? above <= 0 : above >= 0) ? x : Word(0);
    if (++column < columns) return;
    column = 0;
    if (++row == rows) row = 0;
  }

  __device__ TriangleWalk StartAt(int64_t first) const {
    TriangleWalk walk = *this;
    const int64_t rows_before = first / columns;
    walk.row = rows_before % rows;
    walk.column = first - rows_before * columns;
    return walk;
  }
};

void Triangle(const KernelCall<TriangleAttributes, NoScalars>& call) {
  const TriangleAttributes& a = call.attributes();
  const ShardBox& box = call.output_boxes[0];
  const int row_dim = box.shape.ndim() - 2;
  // Beyond the extents all diagonals are alike; a nearer one cannot overflow.
  const int64_t diagonal = std::clamp(a.diagonal, -box.global_shape[row_dim], box.global_shape[row_dim + 1]);
  const TriangleWalk walk = {box.shape[row_dim], box.shape[row_dim + 1],
                             diagonal + box.offset[row_dim] - box.offset[row_dim + 1], a.lower};
  VisitWord(ItemSize(call.outputs[0].dtype()), [&](auto tag) {
    using Word = typename decltype(tag)::type;
    MapOperands(KernelStream(call), box.shape, walk, Writes<Word>{call.outputs[0]},
                Reads<Word>{call.inputs[0]});
  });
}

const RegisterKernel kRegister(kTriangle, DeviceType::kCuda, Triangle);

}  // namespace
}  // namespace weft

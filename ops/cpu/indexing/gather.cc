#include "ops/indexing/gather.h"

#include "ops/cpu/indexing/sum_by_index.h"
#include "ops/cpu/spans/dim_maps.h"
#include "ops/cpu/spans/indices.h"
#include "ops/cpu/spans/row_view.h"
#include "ops/op/kernel.h"
#include "runtime/tensor/convert.h"

namespace weft {
namespace {

// The number of elements that go with one index of `dim`.
int64_t InnerElements(const Shape& shape, int dim) {
  int64_t count = 1;
  for (int d = dim + 1; d < shape.ndim(); ++d) count *= shape[d];
  return count;
}

void Gather(const KernelCall<GatherAttributes, NoScalars>& call) {
  const int dim = call.attributes().dim;
  const ShardBox& box = call.input_boxes[0];
  const Tensor index = DenseIndices(call.inputs[1], call.context);
  CheckIndices("gather", "index", index, call.input_boxes[1], box.global_shape[dim]);
  const Tensor x = Dense(call.inputs[0], call.context);
  const Tensor& y = call.outputs[0];
  if (y.num_elements() == 0) return;
  const int64_t inner = InnerElements(y.shape(), dim);
  const int64_t length = y.shape()[dim];  // of y, and of x, along the dim
  const int64_t slots = x.shape()[dim];
  const int64_t first = box.offset[dim];
  const int64_t* const indices = index.data<int64_t>();
  VisitDType(y.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T absent = ConvertElement<T>(kAbsent);
    const T* const from = x.data<T>();
    T* const to = y.data<T>();
    // A rank that holds a piece of the dim gives what it has and kAbsent elsewhere: the sum of all pieces is
    // the whole, -0 included.
    // [o, j, k] by rows of k
    ParallelForRows(call.context, y.num_elements() / inner, inner, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* const source = from + row / length * slots * inner;
        for (int64_t k = 0; k < inner; ++k) {
          const int64_t slot = indices[row * inner + k] - first;
          to[row * inner + k] = slot >= 0 && slot < slots ? source[slot * inner + k] : absent;
        }
      }
    });
  });
}

void ScatterSum(const KernelCall<ScatterSumAttributes, NoScalars>& call) {
  const int dim = call.attributes().dim;
  const Tensor index = DenseIndices(call.inputs[0], call.context);
  CheckIndices("scatter_sum", "index", index, call.input_boxes[0], call.attributes().extent);
  const int64_t inner = InnerElements(index.shape(), dim);
  SumByIndex(call.context, call.outputs[0], Dense(call.inputs[1], call.context), dim,
             {.data = index.data<int64_t>(), .outer = index.shape()[dim] * inner, .along = inner, .inner = 1},
             call.output_boxes[0].offset[dim], EmptyPlace(call.attributes().to_add));
}

const RegisterKernel kRegister(kGather, DeviceType::kCpu, Gather);
const RegisterKernel kRegisterScatter(kScatterSum, DeviceType::kCpu, ScatterSum);

}  // namespace
}  // namespace weft

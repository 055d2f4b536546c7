#include "ops/indexing/index_select.h"

#include "absl/container/flat_hash_map.h"
#include "ops/cpu/indexing/sum_by_index.h"
#include "ops/cpu/spans/dim_maps.h"
#include "ops/cpu/spans/indices.h"
#include "ops/cpu/spans/row_view.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

void IndexSelect(const KernelCall<IndexAttributes, NoScalars>& call) {
  const int dim = call.attributes().dim;
  const ShardBox& x = call.input_boxes[0];
  const Tensor index = DenseIndices(call.inputs[1], call.context);
  CheckIndices("index_select", "index", index, call.input_boxes[1], x.global_shape[dim]);
  const int64_t* const values = index.data<int64_t>();
  // The list is split as y's dim is.
  const int64_t first = call.output_boxes[0].offset[dim];
  std::vector<DimMap> maps(x.shape.ndim());
  maps[dim] = MakeDimMap(x, call.output_boxes[0], dim, [&](int64_t i) { return values[i - first]; });
  CopyByMaps(call.context, call.inputs[0], call.outputs[0], maps);
}

void IndexAdd(const KernelCall<IndexAddAttributes, NoScalars>& call) {
  const int dim = call.attributes().dim;
  const Tensor index = DenseIndices(call.inputs[0], call.context);
  CheckIndices("index_add", "index", index, call.input_boxes[0], call.attributes().extent);
  SumByIndex(call.context, call.outputs[0], Dense(call.inputs[1], call.context), dim,
             {.data = index.data<int64_t>(), .along = 1}, call.output_boxes[0].offset[dim],
             EmptyPlace(call.attributes().to_add));
}

// Without it, what is later put at the zeros would depend on the order of the list.
// Errors: InvalidArgument naming the first index that was there before.
void RequireDistinct(const Tensor& index, const ShardBox& box) {
  absl::flat_hash_map<int64_t, int64_t> positions;
  const int64_t* const values = index.data<int64_t>();
  for (int64_t j = 0; j < index.num_elements(); ++j) {
    const auto [found, is_new] = positions.emplace(values[j], j);
    WEFT_REQUIRE(is_new, "index_zero: index ", values[j], " stands at both ",
                 GlobalPosition(box, found->second), " and ", GlobalPosition(box, j));
  }
}

void IndexZero(const KernelCall<IndexZeroAttributes, NoScalars>& call) {
  const int dim = call.attributes().dim;
  const ShardBox& x = call.input_boxes[0];
  const Tensor index = DenseIndices(call.inputs[1], call.context);
  CheckIndices("index_zero", "index", index, call.input_boxes[1], x.global_shape[dim]);
  RequireDistinct(index, call.input_boxes[1]);
  DimMap map(x.shape[dim]);
  for (int64_t i = 0; i < x.shape[dim]; ++i) map[i] = i;
  const int64_t* const values = index.data<int64_t>();
  for (int64_t j = 0; j < index.num_elements(); ++j) {
    const int64_t local = values[j] - x.offset[dim];
    if (local >= 0 && local < x.shape[dim]) map[local] = kNowhere;
  }
  std::vector<DimMap> maps(x.shape.ndim());
  maps[dim] = std::move(map);
  CopyByMaps(call.context, call.inputs[0], call.outputs[0], maps, EmptyPlace(call.attributes().to_add));
}

const RegisterKernel kRegisterSelect(kIndexSelect, DeviceType::kCpu, IndexSelect);
const RegisterKernel kRegisterAdd(kIndexAdd, DeviceType::kCpu, IndexAdd);
const RegisterKernel kRegisterZero(kIndexZero, DeviceType::kCpu, IndexZero);

}  // namespace
}  // namespace weft

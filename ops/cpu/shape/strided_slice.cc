#include "ops/shape/strided_slice.h"

#include <cstring>

#include "ops/cpu/shape/rearranged.h"
#include "ops/cpu/spans/parallel_copy.h"
#include "ops/cpu/spans/row_view.h"
#include "ops/op/kernel.h"
#include "ops/shape/dim_source.h"

namespace weft {
namespace {

using Call = KernelCall<StridedSliceAttributes, NoScalars>;

void StridedSlice(const Call& call) {
  CopyRearranged(call, StridedSliceRearrangement(call.attributes(), call.input_boxes[0]));
}

void StridedSliceGrad(const KernelCall<StridedSliceGradAttributes, NoScalars>& call) {
  CopyRearranged(call, StridedSliceGradRearrangement(call.attributes(), call.input_boxes[0]));
}

// x, then over it what of the slice falls into this piece: elements of `src`, row-major, or zeros if that is
// null. One copy of all and a second of the places: a single pass would ask of every element where it belongs.
void PutSlice(const Call& call, const char* src) {
  const StridedSliceAttributes& a = call.attributes();
  const Tensor& y = call.outputs[0];
  if (y.num_elements() == 0) return;
  ParallelCopy(call.context.pool, call.inputs[0], y);
  const int64_t extent = y.shape()[a.dim];
  const int64_t offset = call.output_boxes[0].offset[a.dim];
  const LocalPlaces places = PlacesIn(a, offset, extent);
  int64_t outer = 1;
  int64_t row_elements = 1;
  for (int d = 0; d < a.dim; ++d) outer *= y.shape()[d];
  for (int d = a.dim + 1; d < y.ndim(); ++d) row_elements *= y.shape()[d];
  const int64_t row_bytes = row_elements * ItemSize(y.dtype());
  char* const to = static_cast<char*>(y.data());
  ParallelForRows(call.context, outer * places.count, row_elements, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t j = places.first + row % places.count;
      const int64_t block = row / places.count;
      char* const place = to + (block * extent + a.start + j * a.step - offset) * row_bytes;
      if (src == nullptr) {
        std::memset(place, 0, row_bytes);
      } else {
        std::memcpy(place, src + (block * a.length + j) * row_bytes, row_bytes);
      }
    }
  });
}

void SliceScatter(const Call& call) {
  const Tensor src = Dense(call.inputs[1], call.context);
  PutSlice(call, static_cast<const char*>(src.data()));
}

void SliceZero(const Call& call) { PutSlice(call, nullptr); }

const RegisterKernel kRegisterGrad(kStridedSliceGrad, DeviceType::kCpu, StridedSliceGrad);
const RegisterKernel kRegister[] = {
    {kStridedSlice, DeviceType::kCpu, StridedSlice},
    {kSliceScatter, DeviceType::kCpu, SliceScatter},
    {kSliceZero, DeviceType::kCpu, SliceZero},
};

}  // namespace
}  // namespace weft

#include "ops/optimizer/block_quantize.h"

#include <algorithm>
#include <cmath>

#include "ops/op/kernel.h"
#include "ops/optimizer/block_piece.h"
#include "ops/optimizer/dynamic_map.h"
#include "runtime/tensor/convert.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

constexpr DynamicMap kSignedMap = MakeDynamicMap(/*is_signed=*/true);
constexpr DynamicMap kUnsignedMap = MakeDynamicMap(/*is_signed=*/false);
constexpr auto kSignedThresholds = MakeThresholds(kSignedMap);
constexpr auto kUnsignedThresholds = MakeThresholds(kUnsignedMap);

// Row-major elements: `tensor` itself, or a copy.
Tensor Packed(const Tensor& tensor, KernelContext& context) {
  return tensor.IsContiguous() ? tensor : CloneTensor(tensor, context.allocator);
}
Tensor Packed(const Tensor& tensor, DType dtype, KernelContext& context) {
  return tensor.dtype() == dtype ? Packed(tensor, context) : CastTensor(tensor, dtype, context.allocator);
}

// Calls `body(index)` for each element of the piece that the scale of that number belongs to.
template <class Body>
void ForEachOfBlock(const BlockPiece& piece, int64_t scale, const Body& body) {
  const int64_t row = scale / piece.blocks;
  const int64_t begin = scale % piece.blocks * kBlockElements;
  const int64_t end = std::min(begin + kBlockElements, piece.row_elements);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t found = piece.Find(i);
    if (found >= 0) body(row * piece.piece_elements + found);
  }
}

// Calls `body(scale)` for the number of each scale of the piece's rows.
template <class Body>
void ForEachScale(ThreadPool& pool, const BlockPiece& piece, const Body& body) {
  constexpr int64_t kScalesAtATime = 64;
  pool.ParallelFor(piece.rows * piece.blocks, kScalesAtATime, [&](int64_t begin, int64_t end) {
    for (int64_t scale = begin; scale < end; ++scale) body(scale);
  });
}

void Dequantize(const KernelCall<DequantizeAttributes, NoScalars>& call) {
  const Tensor q = Packed(call.inputs[0], call.context);
  const Tensor a = Packed(call.inputs[1], call.context);
  const float* const map = (call.attributes().is_signed ? kSignedMap : kUnsignedMap).data();
  const BlockPiece piece = BlockPieceOf(call.input_boxes[0]);
  CheckBlockElements(piece, call.outputs[0]);
  CheckBlockScales(piece, a);
  VisitFloating(call.attributes().dtype, "dequantize_blocks", [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* const x = call.outputs[0].data<T>();
    const uint8_t* const codes = q.data<uint8_t>();
    const float* const scales = a.data<float>();
    ForEachScale(call.context.pool, piece, [&](int64_t scale) {
      ForEachOfBlock(piece, scale,
                     [&](int64_t i) { x[i] = ConvertElement<T>(map[codes[i]] * scales[scale]); });
    });
  });
}

// Magnitudes are rounded to float, as scales are, so that devices agree on them.
void Magnitudes(const KernelCall<NoAttributes, NoScalars>& call) {
  const Tensor x = Packed(call.inputs[0], call.context);
  float* const scales = call.outputs[0].data<float>();
  const BlockPiece piece = BlockPieceOf(call.input_boxes[0]);
  CheckBlockScales(piece, call.outputs[0]);
  VisitFloating(x.dtype(), "block_magnitudes", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* const values = x.data<T>();
    ForEachScale(call.context.pool, piece, [&](int64_t scale) {
      float largest = 0;
      ForEachOfBlock(piece, scale, [&](int64_t i) {
        const float magnitude = std::abs(ConvertElement<float>(values[i]));
        if (magnitude > largest || magnitude != magnitude) largest = magnitude;
      });
      scales[scale] = largest;
    });
  });
}

void Quantize(const KernelCall<QuantizeAttributes, NoScalars>& call) {
  const Tensor& s = call.inputs[4];
  const double skip = s.dtype() == DType::kF64 ? *s.data<double>() : static_cast<double>(*s.data<float>());
  if (!std::isfinite(skip)) return;
  const Tensor x = Packed(call.inputs[2], DType::kF32, call.context);
  const Tensor a = Packed(call.inputs[3], call.context);
  const Tensor q = Packed(call.outputs[0], call.context);
  const float* const thresholds =
      (call.attributes().is_signed ? kSignedThresholds : kUnsignedThresholds).data();
  const BlockPiece piece = BlockPieceOf(call.input_boxes[0]);
  CheckBlockElements(piece, x);
  CheckBlockScales(piece, a);
  uint8_t* const codes = q.data<uint8_t>();
  const float* const values = x.data<float>();
  const float* const scales = a.data<float>();
  ForEachScale(call.context.pool, piece, [&](int64_t scale) {
    const float by = scales[scale];
    ForEachOfBlock(piece, scale, [&](int64_t i) {
      codes[i] = static_cast<uint8_t>(NearestCode(thresholds, by > 0 ? values[i] / by : 0.0f));
    });
  });
  if (q.data() != call.outputs[0].data()) CopyTensor(q, call.outputs[0]);
  CopyTensor(a, call.outputs[1]);
}

const RegisterKernel kRegister[] = {
    {kDequantizeBlocks, DeviceType::kCpu, Dequantize},
    {kBlockMagnitudes, DeviceType::kCpu, Magnitudes},
    {kQuantizeBlocks, DeviceType::kCpu, Quantize},
};

}  // namespace
}  // namespace weft

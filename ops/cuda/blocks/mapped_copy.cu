#include <cuda_runtime.h>

#include <cstring>

#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/cuda/blocks/mapped_copy.h"
#include "ops/cuda/blocks/words.h"
#include "runtime/device/cuda/launch.h"
#include "runtime/tensor/convert.h"
#include "runtime/tensor/copy.h"
#include "runtime/tensor/cuda/grid_loop.h"

namespace weft {
namespace {

// Each thread makes one word of y and asks every loop where it comes from: the index maps are arithmetic
// (factor, shift, wrap, divisor) but for an op's own list of indices, so none is made on the host, as for the CPU's
// copy. One dim of y, or several that stay as they are and lie one behind the other in x.
struct MappedLoop {
  int64_t extent = 1;
  int64_t stride = 0;  // of x, in words
  CudaDimSource source;
  int64_t y_offset = 0;
  int64_t x_offset = 0;
  int64_t x_extent = 0;  // of the piece
  int64_t x_global = 0;

  enum Place : int { kHere, kElsewhere, kNowhere };

  // Sets the local index of x.
  __device__ Place Find(int64_t at, int64_t& local) const {
    if (!source.is_mapped) {
      local = at;
      return kHere;
    }
    int64_t global = source.factor * (at + y_offset) + source.shift;
    if (source.indices != nullptr) global = source.indices[at];
    if (source.wrap > 0 && global < 0) global += source.wrap;
    if (source.divisor != 1) {
      if (global % source.divisor != 0) return kNowhere;
      global /= source.divisor;
    }
    if (global < 0 || global >= x_global) return kNowhere;
    local = global - x_offset;
    if (local < 0 || local >= x_extent) return kElsewhere;
    return kHere;
  }
};

struct MappedLoops {
  int num_loops = 0;
  int64_t count = 0;
  MappedLoop loops[Shape::kMaxDims];  // outermost first
  uint4 absent;                       // the element, repeated
  uint4 nowhere;
};

template <class Word>
__device__ Word WordOf(const uint4& pattern) {
  Word word;
  memcpy(&word, &pattern, sizeof(Word));
  return word;
}

// By y's order: writes of neighbouring threads lie side by side, reads as x has them. Every element of y is
// written once, so y needs no fill before, whatever is missing.
template <class Word>
__global__ void MappedCopyKernel(const Word* x, Word* y, MappedLoops map) {
  ForEachOfGrid(map.count, [&](int64_t index) {
    int64_t rest = index;
    int64_t offset = 0;
    int missing = MappedLoop::kHere;
#pragma unroll
    for (int i = Shape::kMaxDims - 1; i >= 0; --i) {
      if (i >= map.num_loops) continue;
      const MappedLoop& loop = map.loops[i];
      const int64_t outer = rest / loop.extent;
      int64_t local = 0;
      const int place = loop.Find(rest - outer * loop.extent, local);
      // Nowhere outdoes elsewhere, as on the CPU: what no rank holds, the first piece gives.
      missing = place > missing ? place : missing;
      offset += local * loop.stride;
      rest = outer;
    }
    y[index] = missing == MappedLoop::kHere        ? x[offset]
               : missing == MappedLoop::kElsewhere ? WordOf<Word>(map.absent)
                                                   : WordOf<Word>(map.nowhere);
  });
}

// The element repeated over the widest word, so that one kernel serves all dtypes by their size.
uint4 PatternOf(double value, DType dtype) {
  uint4 pattern = {};
  VisitDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T element = ConvertElement<T>(value);
    for (size_t at = 0; at < sizeof(pattern); at += sizeof(T)) {
      std::memcpy(reinterpret_cast<char*>(&pattern) + at, &element, sizeof(T));
    }
  });
  return pattern;
}

}  // namespace

void CudaMappedCopy(const KernelCallBase& call, const Tensor& x, const ShardBox& x_box, const Tensor& y,
                    const ShardBox& y_box, absl::Span<const CudaDimSource> sources, double nowhere) {
  if (y.num_elements() == 0) return;
  MappedLoops map;
  for (int dim = 0; dim < y.ndim(); ++dim) {
    const bool is_mapped = sources[dim].is_mapped;
    if (y.shape()[dim] == 1 && !is_mapped) continue;
    // Dims that stay and lie one behind the other in x become one loop: each loop costs a division of 64 bits
    // per word.
    MappedLoop* const outer = map.num_loops == 0 ? nullptr : &map.loops[map.num_loops - 1];
    if (outer != nullptr && !is_mapped && !outer->source.is_mapped &&
        outer->stride == x.strides()[dim] * y.shape()[dim]) {
      outer->extent *= y.shape()[dim];
      outer->stride = x.strides()[dim];
      continue;
    }
    map.loops[map.num_loops++] = {.extent = y.shape()[dim],
                                  .stride = x.strides()[dim],
                                  .source = sources[dim],
                                  .y_offset = y_box.offset[dim],
                                  .x_offset = x_box.offset[dim],
                                  .x_extent = x_box.shape[dim],
                                  .x_global = x_box.global_shape[dim]};
  }
  // Runs that stay together move by the widest words that they and all strides are made of.
  const int inner = map.num_loops - 1;
  int64_t word = ItemSize(y.dtype());
  if (inner >= 0 && !map.loops[inner].source.is_mapped && map.loops[inner].stride == 1) {
    int64_t bytes = map.loops[inner].extent * word;
    for (int i = 0; i < inner; ++i) bytes |= map.loops[i].stride * word;
    const int64_t widest = WidestWord(bytes, x.data(), y.data());
    // All strides are multiples of the word, and so is the end of every run: no thread meets half a word.
    const int64_t items = std::max<int64_t>(1, widest / word);
    map.loops[inner].extent /= items;
    for (int i = 0; i < inner; ++i) map.loops[i].stride /= items;
    word *= items;
  }
  map.count = y.num_bytes() / word;
  map.absent = PatternOf(kAbsent, y.dtype());
  map.nowhere = PatternOf(nowhere, y.dtype());
  // Five kernels, of words of 1 to 16 bytes, serve all dtypes.
  VisitWordOf(word, [&](auto tag) {
    using Word = typename decltype(tag)::type;
    LaunchCuda(KernelStream(call), GridOver(map.count), MappedCopyKernel<Word>,
               static_cast<const Word*>(x.data()), static_cast<Word*>(y.data()), map);
  });
}

}  // namespace weft

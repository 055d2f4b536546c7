#ifndef WEFT_OPS_CUDA_BLOCKS_MAP_MANY_H_
#define WEFT_OPS_CUDA_BLOCKS_MAP_MANY_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "ops/cuda/blocks/many_tensors.h"
#include "ops/cuda/blocks/map_elements.h"

namespace weft {

// Ops that work element by element (map_elements.h) on many tensors in few launches.

template <class Function, int kOperands>
struct MapManyItem {
  Function function;
  void* data[kOperands];
};

// The elements [begin, end) of dense operands, by the threads of a block.
template <int kPack, class Function, class... Pointers>
__device__ void MapChunk(const Function& function, const ManyChunk& chunk, Pointers... pointers) {
  const int64_t step = int64_t{blockDim.x} * kPack;
  for (int64_t i = chunk.begin + int64_t{threadIdx.x} * kPack; i < chunk.end; i += step) {
    const int64_t left = chunk.end - i;
    const int count = left < kPack ? static_cast<int>(left) : kPack;
    MapPack<kPack>(function, count, LoadedPack<kPack, Pointers>(pointers, i, /*repeats=*/false, count)...);
  }
}

template <class Function, class... Pointers>
__global__ void __launch_bounds__(kManyThreads)
    MapManyKernel(const ManyTensors<MapManyItem<Function, static_cast<int>(sizeof...(Pointers))>> tensors) {
  constexpr int kPack = 16 / static_cast<int>(std::max({sizeof(typename Pointers::Element)...}));
  const ManyChunk chunk = tensors.ChunkOf(static_cast<int>(blockIdx.x));
  const auto item = tensors.items[chunk.tensor];
  if constexpr (requires { item.function.Skips(); }) {
    if (item.function.Skips()) return;
  }
  const auto function = StartingAt(item.function, chunk.begin);
  const auto map = [&](Pointers... pointers) {
    const bool packs =
        ((reinterpret_cast<uintptr_t>(pointers.data) % (kPack * sizeof(typename Pointers::Element)) == 0) &&
         ...);
    if (packs) {
      MapChunk<kPack>(function, chunk, pointers...);
    } else {
      MapChunk<1>(function, chunk, pointers...);
    }
  };
  [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    map(Pointers{static_cast<typename Pointers::Element*>(item.data[kIndex])}...);
  }
  (std::index_sequence_for<Pointers...>());
}

// Calls a function for every element of many tensors, as MapOperands does for one and with its bits: each
// tensor has a function of its own, and operands that are contiguous and of equal counts. Of what a Function
// may have, StartAt is asked once a chunk.
template <class Function, class... Pointers>
class MapMany {
 public:
  explicit MapMany(CudaStreamRef stream) : launch_{stream}, launches_(launch_) {}

  void Add(int64_t count, const Function& function, Pointers... pointers) {
    launches_.Add(count, {function, {pointers.data...}});
  }
  void Finish() { launches_.Finish(); }

 private:
  using Item = MapManyItem<Function, static_cast<int>(sizeof...(Pointers))>;
  struct Launch {
    CudaStreamRef stream;
    void operator()(const ManyTensors<Item>& tensors) const {
      LaunchCuda(stream, tensors.Grid(), MapManyKernel<Function, Pointers...>, tensors);
    }
  };

  const Launch launch_;
  ManyLaunches<Item, Launch> launches_;
};

}  // namespace weft

#endif  // WEFT_OPS_CUDA_BLOCKS_MAP_MANY_H_

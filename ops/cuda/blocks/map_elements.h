#ifndef WEFT_OPS_CUDA_BLOCKS_MAP_ELEMENTS_H_
#define WEFT_OPS_CUDA_BLOCKS_MAP_ELEMENTS_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <type_traits>
#include <utility>

#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/op/kernel_call.h"
#include "runtime/device/cuda/launch.h"
#include "runtime/tensor/cuda/convert_on_device.h"
#include "runtime/tensor/cuda/grid_loop.h"
#include "runtime/tensor/cuda/strided_loops.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// Kernels of ops whose output i follows from the operands' elements i.
//
// A thread takes a pack of neighbouring elements: as many as fill 16 bytes of the widest operand where every
// operand is contiguous along the pack or has one value there, and lies so that a pack is one aligned access;
// else one element. Each element's result depends on that element alone, so the choice does not show.

// What elements of T are computed in: float for halves, int32_t for u8 and bool, else T itself.
template <class T>
using ElementValue =
    std::conditional_t<std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>, float,
                       std::conditional_t<std::is_same_v<T, uint8_t> || std::is_same_v<T, bool>, int32_t, T>>;

// kCount elements that move as one where they are aligned to their size.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) ElementPack {
  T items[kCount];
};

// The same bytes as words, each of which moves as one.
template <size_t kBytes>
struct PackWords {
  uint4 words[kBytes / 16];
};
template <>
struct PackWords<8> {
  uint2 words[1];
};
template <>
struct PackWords<4> {
  unsigned words[1];
};
template <>
struct PackWords<2> {
  unsigned short words[1];
};
template <>
struct PackWords<1> {
  unsigned char words[1];
};

// To `address`, aligned to the pack's size. By __stcg, since nvcc is free to cut the store of a struct up.
template <class T, int kCount>
__device__ void StorePack(const ElementPack<T, kCount>& pack, T* address) {
  const auto packed = std::bit_cast<PackWords<sizeof(pack)>>(pack);
  auto* const to = reinterpret_cast<std::decay_t<decltype(packed.words[0])>*>(address);
#pragma unroll
  for (size_t i = 0; i < std::size(packed.words); ++i) __stcg(to + i, packed.words[i]);
}

enum class MapUse { kRead, kWrite, kUpdate };  // kUpdate: read and written back

// One operand. On the host with its tensor's strides, broadcast to the common shape; kernels get the pointer.
template <class T, MapUse kUse>
struct MapPointer {
  using Element = T;
  static constexpr MapUse kUseOf = kUse;
  T* data = nullptr;
};
template <class T, MapUse kUse>
struct MapOperand {
  const Tensor& tensor;

  MapPointer<T, kUse> pointer() const { return {static_cast<T*>(tensor.data())}; }
};
// T has the size of the tensor's elements: where they are but moved, any type of that size serves.
template <class T>
using Reads = MapOperand<T, MapUse::kRead>;
template <class T>
using Writes = MapOperand<T, MapUse::kWrite>;
template <class T>
using Updates = MapOperand<T, MapUse::kUpdate>;

// Where the packs of each operand are. A kernel's argument.
template <int kOperands>
struct PackLoops {
  StridedLoops<kOperands> packs;  // counts packs; strides are in elements
  int64_t num_elements = 0;       // the last pack may be partial, where there is one loop
  bool repeats[kOperands] = {};   // the operand has one value all along a pack

  __device__ void Offsets(int64_t pack, int64_t (&offsets)[kOperands]) const {
    if (packs.num_loops > 1) return packs.Offsets(pack, offsets);
#pragma unroll
    for (int i = 0; i < kOperands; ++i) offsets[i] = pack * packs.strides[i][0];
  }
};

// One operand's pack, in registers.
template <int kPack, class Pointer>
struct LoadedPack {
  using T = typename Pointer::Element;
  using Value = ElementValue<T>;

  T* place;
  Value values[kPack] = {};

  // `count`: how many of the pack's elements there are.
  __device__ LoadedPack(Pointer pointer, int64_t offset, bool repeats, int count)
      : place(pointer.data + offset) {
    if constexpr (Pointer::kUseOf != MapUse::kWrite) {
      if (repeats) {
        const Value value = ConvertOnDevice<Value>(*place);
#pragma unroll
        for (int j = 0; j < kPack; ++j) values[j] = value;
      } else if (count == kPack) {
        const auto pack = *reinterpret_cast<const ElementPack<T, kPack>*>(place);
#pragma unroll
        for (int j = 0; j < kPack; ++j) values[j] = ConvertOnDevice<Value>(pack.items[j]);
      } else {
#pragma unroll
        for (int j = 0; j < kPack; ++j) {
          if (j < count) values[j] = ConvertOnDevice<Value>(place[j]);
        }
      }
    }
  }

  __device__ void Store(int count) const {
    if constexpr (Pointer::kUseOf != MapUse::kRead) {
      if (count == kPack) {
        ElementPack<T, kPack> pack;
#pragma unroll
        for (int j = 0; j < kPack; ++j) pack.items[j] = ConvertOnDevice<T>(values[j]);
        StorePack(pack, place);
      } else {
#pragma unroll
        for (int j = 0; j < kPack; ++j) {
          if (j < count) place[j] = ConvertOnDevice<T>(values[j]);
        }
      }
    }
  }
};

// What is called for the elements from `first` on, one after the other: see MapOperands.
template <class Function>
__device__ auto StartingAt(const Function& function, int64_t first) {
  if constexpr (requires { function.StartAt(first); }) {
    return function.StartAt(first);
  } else {
    return function;
  }
}

template <int kPack, class Function, class... Loaded>
__device__ void MapPack(Function&& function, int count, Loaded&&... packs) {
#pragma unroll
  for (int j = 0; j < kPack; ++j) function(packs.values[j]...);
  (packs.Store(count), ...);
}

template <int kPack, class Function, class... Pointers>
__global__ void MapKernel(PackLoops<static_cast<int>(sizeof...(Pointers))> loops, Function function,
                          Pointers... pointers) {
  if constexpr (requires { function.Skips(); }) {
    if (function.Skips()) return;
  }
  ForEachOfGrid(loops.packs.count, [&](int64_t i) {
    int64_t offsets[sizeof...(Pointers)];
    loops.Offsets(i, offsets);
    const int64_t first = i * kPack;
    const int64_t left = loops.num_elements - first;
    const int count = left < kPack ? static_cast<int>(left) : kPack;
    [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
      MapPack<kPack>(StartingAt(function, first), count,
                     LoadedPack<kPack, Pointers>(pointers, offsets[kIndex], loops.repeats[kIndex], count)...);
    }
    (std::index_sequence_for<Pointers...>());
  });
}

// True if operand `i` of the loops allows packs of kPack elements; sets how they lie.
template <int kPack, int kOperands, class Pointer>
bool TakesPacks(const StridedLoops<kOperands>& loops, int i, const Pointer& pointer,
                PackLoops<kOperands>* packs) {
  using T = typename Pointer::Element;
  const int inner = loops.num_loops - 1;
  if (loops.strides[i][inner] == 0 && Pointer::kUseOf == MapUse::kRead) {
    packs->repeats[i] = true;
    return true;
  }
  bool takes =
      loops.strides[i][inner] == 1 && reinterpret_cast<uintptr_t>(pointer.data) % (kPack * sizeof(T)) == 0;
  for (int loop = 0; loop < inner; ++loop) takes = takes && loops.strides[i][loop] % kPack == 0;
  packs->packs.strides[i][inner] = kPack;
  return takes;
}

// `packs` of kPack elements instead of the loops' single ones, if all operands take them.
template <int kPack, int kOperands, class... Pointers>
bool MakePacks(const StridedLoops<kOperands>& loops, PackLoops<kOperands>* packs,
               const Pointers&... pointers) {
  const int inner = loops.num_loops - 1;
  if (inner < 0 || (inner > 0 && loops.extents[inner] % kPack != 0)) return false;
  packs->packs = loops;
  packs->packs.extents[inner] = (loops.extents[inner] + kPack - 1) / kPack;
  packs->packs.count = loops.count / loops.extents[inner] * packs->packs.extents[inner];
  int i = 0;
  return (TakesPacks<kPack>(loops, i++, pointers, packs) && ...);
}

// Calls `function(v0, v1, ...)` for every element of `shape` with references to the operands' values there,
// and writes back those that are written. Operands broadcast to the shape; those written have it, and no
// element twice. What Function, a trivially copyable struct, may have besides:
//   bool Skips() const                 true: nothing is to be done at all
//   auto StartAt(int64_t first) const  what is called, instead of it, for element `first` in row-major order
//                                      and some that follow, one after the other
template <class Function, class... T, MapUse... kUse>
void MapOperands(CudaStreamRef stream, const Shape& shape, const Function& function,
                 MapOperand<T, kUse>... operands) {
  constexpr int kOperands = sizeof...(T);
  // 16 bytes are the widest access of a thread, up to Hopper. Operands of narrower elements move as many
  // elements in less.
  constexpr int kPack = 16 / static_cast<int>(std::max({sizeof(T)...}));
  if (shape.num_elements() == 0) return;
  const Shape strides[kOperands] = {operands.tensor.Expand(shape).strides()...};
  const StridedLoops<kOperands> loops = MakeStridedLoops(shape, strides);
  PackLoops<kOperands> packs;
  packs.num_elements = loops.count;
  if (MakePacks<kPack>(loops, &packs, operands.pointer()...)) {
    LaunchCuda(stream, GridOver(packs.packs.count), MapKernel<kPack, Function, MapPointer<T, kUse>...>, packs,
               function, operands.pointer()...);
  } else {
    packs = {.packs = loops, .num_elements = loops.count};
    LaunchCuda(stream, GridOver(loops.count), MapKernel<1, Function, MapPointer<T, kUse>...>, packs, function,
               operands.pointer()...);
  }
}

// y = function(x...), as a function on references.
template <class Function>
struct AssignResult {
  Function function;

  template <class Y, class... X>
  __device__ void operator()(Y& y, const X&... x) const {
    y = static_cast<Y>(function(x...));
  }
};

// Output 0 = function(values of the operands), a function of as many values as there are X: operand i has
// elements X[i], the output Y.
template <class Y, class... X, class Function>
void MapElements(const KernelCallBase& call, const Function& function) {
  [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    MapOperands(KernelStream(call), call.outputs[0].shape(), AssignResult<Function>{function},
                Writes<Y>{call.outputs[0]}, Reads<X>{call.inputs[kIndex]}...);
  }
  (std::index_sequence_for<X...>());
}

// Calls `function(TypeTag<T>())` for a dtype that is neither u8 nor bool.
// Errors: Internal for those: inference refuses them.
template <class Function>
void VisitNumeric(DType dtype, Function&& function) {
  VisitDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, uint8_t> || std::is_same_v<T, bool>) {
      WEFT_CHECK(false, "no arithmetic on ", DTypeName(dtype));
    } else {
      function(tag);
    }
  });
}

// Calls `function` with the type that elements of a dtype are compared and moved as: bools are read as u8.
template <class Function>
void VisitOrdered(DType dtype, Function&& function) {
  VisitDType(dtype == DType::kBool ? DType::kU8 : dtype, [&](auto tag) {
    if constexpr (!std::is_same_v<typename decltype(tag)::type, bool>) function(tag);
  });
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_BLOCKS_MAP_ELEMENTS_H_

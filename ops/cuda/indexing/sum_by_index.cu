#include <cuda_runtime.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#include "ops/cuda/blocks/indices.h"
#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/cuda/indexing/sort_rows.h"
#include "ops/cuda/indexing/sum_by_index.h"
#include "runtime/device/cuda/launch.h"
#include "runtime/tensor/convert.h"
#include "runtime/tensor/copy.h"
#include "runtime/tensor/cuda/grid_loop.h"

namespace weft {
namespace {

template <class T>
using SumType = std::conditional_t<std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>, float, T>;

// Integers wrap.
template <class C>
__device__ C AddTerm(C a, C b) {
  if constexpr (std::is_integral_v<C>) {
    using Unsigned = std::make_unsigned_t<C>;
    return static_cast<C>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  } else {
    return a + b;
  }
}

struct SumExtents {
  int64_t outer = 1;
  int64_t inner = 1;
  int64_t terms = 0;  // of src along the dim
  CudaSlots slots;    // of y

  SumExtents(const Tensor& y, const Tensor& src, int dim, const CudaSlots& slots)
      : terms(src.shape()[dim]), slots(slots) {
    for (int d = 0; d < y.ndim(); ++d) {
      if (d < dim) outer *= y.shape()[d];
      if (d > dim) inner *= y.shape()[d];
    }
  }
};

// counts[v] += 1 for every place of v, or `of_bad` where the index is bad; integers, whose sum has no order.
// Sums by index in a fixed order without sorting: a counting sort of the places (count, scan, put), whose
// third step leaves the places of one index in any order, and then each block puts its few places in order
// before it adds; those of a frequent index are listed anew. Adding by atomics would be one kernel, of other
// bits in every run.
__global__ void CountPlacesKernel(const int64_t* index, int64_t count, CudaSlots slots, int of_bad,
                                  int* counts) {
  ForEachOfGrid(count, [&](int64_t j) {
    const int64_t slot = slots.Find(index[j]);
    if (slot >= 0) atomicAdd(&counts[slot], slots.IsBad(index[j]) ? of_bad : 1);
  });
}

// For SumSortedKernel: the slot of each place, slots.count of one that goes to none.
__global__ void FindSlotsKernel(const int64_t* index, int64_t count, CudaSlots slots, int64_t* keys) {
  ForEachOfGrid(count, [&](int64_t j) {
    const int64_t slot = slots.Find(index[j]);
    keys[j] = slot >= 0 ? slot : slots.count;
  });
}

// One block, since the blocks of a grid cannot wait for each other within a kernel; the slots of a vocabulary
// are few beside the elements that are added.
constexpr int kScanThreads = 512;

// sums[i] becomes the sum of sums[0] to sums[i], by a block of kScanThreads.
// The scan of Hillis and Steele: a barrier before the write, until all have read the old sums, and one behind
// it.
__device__ void ScanOfBlock(int* sums) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  for (int step = 1; step < kScanThreads; step *= 2) {
    const int before = thread >= step ? sums[thread - step] : 0;
    __syncthreads();
    sums[thread] += before;
    __syncthreads();
  }
}

// starts[v] = next[v] = the sum of the counts before v, and starts[slots] that of all. One block, whose
// threads take a run of slots each.
__global__ void ScanCountsKernel(const int* counts, int64_t slots, int* starts, int* next) {
  __shared__ int sums[kScanThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t run = (slots + kScanThreads - 1) / kScanThreads;
  const int64_t begin = thread * run < slots ? thread * run : slots;
  const int64_t end = begin + run < slots ? begin + run : slots;
  int sum = 0;
  for (int64_t v = begin; v < end; ++v) sum += counts[v];
  sums[thread] = sum;
  ScanOfBlock(sums);
  int at = sums[thread] - sum;
  for (int64_t v = begin; v < end; ++v) {
    starts[v] = next[v] = at;
    at += counts[v];
  }
  if (thread == kScanThreads - 1) starts[slots] = sums[thread];
}

// Place j of the list as runs hold it: ~j, which is below 0, if its index is bad.
__device__ int PlaceOf(int64_t j, bool is_bad) { return static_cast<int>(is_bad ? ~j : j); }

// Every place goes to the run of its index, in any order.
__global__ void PutPlacesKernel(const int64_t* index, int64_t count, CudaSlots slots, int* next,
                                int* places) {
  ForEachOfGrid(count, [&](int64_t j) {
    const int64_t slot = slots.Find(index[j]);
    if (slot >= 0) places[atomicAdd(&next[slot], 1)] = PlaceOf(j, slots.IsBad(index[j]));
  });
}

constexpr int kSumThreads = 128;
constexpr int kMostPlaces = 512;  // of an index, to be put in order by comparing each with each

// Puts places in ascending order, by a block. They differ, so the ranks are 0 to count - 1: a sort in whatever order atomics
// left the places.
__device__ void OrderPlaces(const int* places, int count, int* ordered) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kSumThreads) {
    const int place = places[i];
    int rank = 0;
    for (int other = 0; other < count; ++other) rank += places[other] < place ? 1 : 0;
    ordered[rank] = place;
  }
}

// Puts the places of a slot in order: a block goes over the whole list and keeps those of the slot, from places[at] on.
__device__ void ListPlaces(const int64_t* index, int64_t count, const CudaSlots& slots, int64_t slot, int at,
                           int* sums, int* places) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t first = 0; first < count; first += kScanThreads) {
    const int64_t j = first + thread;
    const bool is_one = j < count && slots.Find(index[j]) == slot;
    sums[thread] = is_one ? 1 : 0;
    ScanOfBlock(sums);
    if (is_one) places[at + sums[thread] - 1] = PlaceOf(j, slots.IsBad(index[j]));
    at += sums[kScanThreads - 1];
    __syncthreads();  // all have read `sums`
  }
}

// That for every slot with more than kMostPlaces (a padding token, a class), where comparing each with each would
// take their square. A block has slots that lie apart: the frequent tokens of a vocabulary lie together.
__global__ void __launch_bounds__(kScanThreads)
    ListFrequentKernel(const int64_t* index, int64_t count, CudaSlots slots, const int* starts, int* places) {
  __shared__ int sums[kScanThreads];
  __shared__ bool is_frequent[kScanThreads];
  const int64_t step = gridDim.x;
  for (int64_t first = blockIdx.x; first < slots.count; first += step * kScanThreads) {
    // A thread looks at a slot each, so that a block waits for memory once.
    const int64_t own = first + step * threadIdx.x;
    is_frequent[threadIdx.x] = own < slots.count && starts[own + 1] - starts[own] > kMostPlaces;
    __syncthreads();
    int64_t slot = first;
    for (int i = 0; i < kScanThreads && slot < slots.count; ++i, slot += step) {
      if (is_frequent[i]) ListPlaces(index, count, slots, slot, starts[slot], sums, places);
    }
    __syncthreads();  // `is_frequent` is read until here
  }
}

// One block for each (slot, outer), in rounds where a grid holds no more: it puts the places in order, where
// they are few, then adds their rows, `kPack` columns a thread.
template <class T, int kPack>
__global__ void __launch_bounds__(kSumThreads)
    SumPlacesKernel(SumExtents n, const int* starts, const int* places, const T* src, SumType<T> start,
                    SumType<T> bad, T* y) {
  using C = SumType<T>;
  struct alignas(sizeof(T) * kPack) Pack {
    T at[kPack];
  };
  __shared__ int ordered[kMostPlaces];
  for (int64_t block = blockIdx.x; block < n.slots.count * n.outer; block += gridDim.x) {
    __syncthreads();  // `ordered` is read until the round before has ended
    const int64_t slot = block % n.slots.count, outer = block / n.slots.count;
    const int begin = starts[slot];
    const int count = starts[slot + 1] - begin;
    const bool are_few = count <= kMostPlaces;
    if (are_few) OrderPlaces(places + begin, count, ordered);
    __syncthreads();
    const T* const terms = src + outer * n.terms * n.inner;
    T* const to = y + (outer * n.slots.count + slot) * n.inner;
    for (int64_t k = int64_t{threadIdx.x} * kPack; k < n.inner; k += int64_t{kSumThreads} * kPack) {
      C sums[kPack];
#pragma unroll
      for (int i = 0; i < kPack; ++i) sums[i] = start;
      bool has_bad = false;
      // A bad place's row is read as others are: it is there, and no load waits for a test.
      const auto add = [&](int place) {
        has_bad |= place < 0;
        const int64_t row = place < 0 ? ~place : place;
        const Pack term = *reinterpret_cast<const Pack*>(terms + row * n.inner + k);
#pragma unroll
        for (int i = 0; i < kPack; ++i) sums[i] = AddTerm(sums[i], static_cast<C>(term.at[i]));
      };
      if (are_few) {
#pragma unroll 4
        for (int i = 0; i < count; ++i) add(ordered[i]);
      } else {
#pragma unroll 4
        for (int i = 0; i < count; ++i) add(places[begin + i]);
      }
      Pack result;
#pragma unroll
      for (int i = 0; i < kPack; ++i) result.at[i] = ConvertElement<T>(has_bad ? bad : sums[i]);
      *reinterpret_cast<Pack*>(to + k) = result;
    }
  }
}

// Of one dim, from the places in the order of their slots: a thread for each, and that of a slot's first adds the slot's
// terms. `keys`: the slots, n.slots.count of what goes to none.
template <class T>
__global__ void SumSortedKernel(SumExtents n, const int64_t* keys, const int64_t* places,
                                const int64_t* index, const T* src, SumType<T> start, SumType<T> bad, T* y) {
  using C = SumType<T>;
  ForEachOfGrid(n.terms, [&](int64_t i) {
    const int64_t slot = keys[i];
    if (slot == n.slots.count || (i > 0 && keys[i - 1] == slot)) return;
    C sum = start;
    bool has_bad = false;
    for (int64_t at = i; at < n.terms && keys[at] == slot; ++at) {
      const int64_t place = places[at];
      has_bad |= n.slots.IsBad(index[place]);
      sum = AddTerm(sum, static_cast<C>(src[place]));
    }
    y[slot] = ConvertElement<T>(has_bad ? bad : sum);
  });
}

// A thread for each term, of integers alone, whose sum has no order. So a tensor of one dim is not one thread's.
template <class T>
__global__ void AddTermsKernel(SumExtents n, const int64_t* index, const T* src, T* sums) {
  // As CUDA's atomics take them.
  using Word = std::conditional_t<sizeof(T) == 8, unsigned long long, unsigned>;
  const int64_t block = n.terms * n.inner;
  ForEachOfGrid(n.outer * block, [&](int64_t i) {
    const int64_t slot = n.slots.Find(index[i]);
    if (slot < 0) return;
    T* const to = sums + (i / block * n.slots.count + slot) * n.inner + i % n.inner;
    atomicAdd(reinterpret_cast<Word*>(to), static_cast<Word>(src[i]));
  });
}

// A column is one thread's: it adds in memory that nobody else touches, in order.
// Neighbouring threads take neighbouring columns, so each step of their loops reads side by side.
template <class T>
__global__ void SumColumnsKernel(SumExtents n, const int64_t* index, const T* src, SumType<T> bad,
                                 SumType<T>* sums) {
  using C = SumType<T>;
  ForEachOfGrid(n.outer * n.inner, [&](int64_t column) {
    const int64_t outer = column / n.inner;
    const int64_t k = column % n.inner;
    const int64_t from = outer * n.terms * n.inner + k;
    C* const to = sums + outer * n.slots.count * n.inner + k;
    for (int64_t j = 0; j < n.terms; ++j) {
      const int64_t at = index[from + j * n.inner];
      const int64_t slot = n.slots.Find(at);
      if (slot < 0) continue;
      C& sum = to[slot * n.inner];
      sum = AddTerm(sum, n.slots.IsBad(at) ? bad : static_cast<C>(src[from + j * n.inner]));
    }
  });
}

// Calls `function` with the C++ type of a dtype that has sums.
template <class Function>
void VisitSummed(DType dtype, const Function& function) {
  VisitDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, uint8_t> || std::is_same_v<T, bool>) {
      WEFT_CHECK(false, "no sums of ", DTypeName(dtype));
    } else {
      function(tag);
    }
  });
}

// As CudaSumByList, of one dim, where slots are many beside places.
void SumSorted(const KernelCallBase& call, const Tensor& y, const Tensor& src, const Tensor& index,
               const SumExtents& n, double start) {
  const auto& allocator = call.context.allocator;
  const CudaStreamRef stream = KernelStream(call);
  const int64_t* const indices = index.data<int64_t>();
  const Tensor slots = Tensor::Empty(allocator, DType::kI64, {n.terms});
  const Tensor keys = Tensor::Empty(allocator, DType::kI64, {n.terms});
  const Tensor places = Tensor::Empty(allocator, DType::kI64, {n.terms});
  LaunchCuda(stream, GridOver(n.terms), FindSlotsKernel, indices, n.terms, n.slots, slots.data<int64_t>());
  CudaSortRows(call, slots, {.names = Tensor()}, keys, places);  // of one slot by place, so ascending
  FillTensor(y, start);
  VisitSummed(y.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = SumType<T>;
    LaunchCuda(stream, GridOver(n.terms), SumSortedKernel<T>, n, keys.data<int64_t>(), places.data<int64_t>(),
               indices, src.data<T>(), ConvertElement<C>(start), BadElement<C>(), y.data<T>());
  });
}

}  // namespace

Tensor CudaCountPlaces(const KernelCallBase& call, const Tensor& index, const CudaSlots& slots, int of_bad) {
  const Tensor counts = Tensor::Empty(call.context.allocator, DType::kI32, {slots.count});
  FillTensor(counts, 0);
  if (index.num_elements() > 0 && slots.count > 0) {
    LaunchCuda(KernelStream(call), GridOver(index.num_elements()), CountPlacesKernel, index.data<int64_t>(),
               index.num_elements(), slots, of_bad, counts.data<int32_t>());
  }
  return counts;
}

void CudaSumByList(const KernelCallBase& call, const Tensor& y, const Tensor& src, int dim,
                   const Tensor& index, const CudaSlots& slots, double start) {
  if (y.num_elements() == 0) return;
  const SumExtents n(y, src, dim, slots);
  if (n.terms == 0) return FillTensor(y, start);
  WEFT_CHECK(n.terms <= std::numeric_limits<int>::max(), n.terms, " indices");
  // The list's workspace of 12 bytes per slot, and its scan by one block, are several times the result of one dim; sorted, it is
  // 48 to 72 bytes per place. Where rows are wider, the result itself outweighs the list.
  constexpr int64_t kManySlots = 8;  // per place
  if (n.outer * n.inner == 1 && n.slots.count > kManySlots * n.terms) {
    return SumSorted(call, y, src, index, n, start);
  }
  const CudaStreamRef stream = KernelStream(call);
  const auto& allocator = call.context.allocator;
  const Tensor counts = CudaCountPlaces(call, index, slots);
  const Tensor starts = Tensor::Empty(allocator, DType::kI32, {slots.count + 1});
  const Tensor next = Tensor::Empty(allocator, DType::kI32, {slots.count});
  const Tensor places = Tensor::Empty(allocator, DType::kI32, {n.terms});
  const int64_t* const indices = index.data<int64_t>();
  LaunchCuda(stream, {.blocks = 1, .threads = kScanThreads}, ScanCountsKernel, counts.data<int32_t>(),
             slots.count, starts.data<int32_t>(), next.data<int32_t>());
  LaunchCuda(stream, GridOver(n.terms), PutPlacesKernel, indices, n.terms, slots, next.data<int32_t>(),
             places.data<int32_t>());
  if (n.terms > kMostPlaces) {
    constexpr int64_t kMostBlocks = 132 * 4;  // as many as a GPU runs at once
    const int64_t blocks = std::min(slots.count, kMostBlocks);
    LaunchCuda(stream, {.blocks = static_cast<unsigned>(blocks), .threads = kScanThreads}, ListFrequentKernel,
               indices, n.terms, slots, starts.data<int32_t>(), places.data<int32_t>());
  }
  VisitSummed(y.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = SumType<T>;
    constexpr int kPack = 16 / sizeof(T);
    const auto address = reinterpret_cast<uintptr_t>(src.data()) | reinterpret_cast<uintptr_t>(y.data());
    const int64_t blocks = std::min<int64_t>(slots.count * n.outer, std::numeric_limits<int>::max());
    const CudaGrid grid = {.blocks = static_cast<unsigned>(blocks), .threads = kSumThreads};
    const auto kernel =
        n.inner % kPack == 0 && address % 16 == 0 ? SumPlacesKernel<T, kPack> : SumPlacesKernel<T, 1>;
    LaunchCuda(stream, grid, kernel, n, starts.data<int32_t>(), places.data<int32_t>(), src.data<T>(),
               ConvertElement<C>(start), BadElement<C>(), y.data<T>());
  });
}

void CudaSumByBlock(const KernelCallBase& call, const Tensor& y, const Tensor& src, int dim,
                    const Tensor& index, const CudaSlots& slots, double start) {
  if (y.num_elements() == 0) return;
  const SumExtents n(y, src, dim, slots);
  // Of one dim, the block is a list.
  const bool is_list = n.outer == 1 && n.inner == 1 && n.terms <= std::numeric_limits<int>::max();
  if (is_list && IsFloating(y.dtype())) return CudaSumByList(call, y, src, dim, index, slots, start);
  VisitSummed(y.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = SumType<T>;
    // Sums of halves grow in memory here, so that memory must be float; the copy at the end rounds them once.
    const bool direct = std::is_same_v<T, C>;
    const Tensor sums = direct ? y : Tensor::Empty(call.context.allocator, kDTypeOf<C>, y.shape());
    FillTensor(sums, start);
    if (n.terms > 0) {
      if constexpr (std::is_integral_v<T>) {
        LaunchCuda(KernelStream(call), GridOver(src.num_elements()), AddTermsKernel<T>, n,
                   index.data<int64_t>(), src.data<T>(), sums.data<C>());
      } else {
        LaunchCuda(KernelStream(call), GridOver(n.outer * n.inner), SumColumnsKernel<T>, n,
                   index.data<int64_t>(), src.data<T>(), BadElement<C>(), sums.data<C>());
      }
    }
    if (!direct) CopyTensor(sums, y);
  });
}

}  // namespace weft

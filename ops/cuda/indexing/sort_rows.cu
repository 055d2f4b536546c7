#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>

#include "ops/cuda/blocks/indices.h"
#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/cuda/indexing/sort_rows.h"
#include "runtime/device/cuda/launch.h"
#include "runtime/tensor/cuda/grid_loop.h"

namespace weft {
namespace {

// An element by its key, the name that breaks ties, and where it stands in its row.
struct SortItem {
  uint64_t key;
  int64_t name;
  int64_t position;  // -1: there is no element

  __device__ bool After(const SortItem& other) const {
    return key != other.key ? key > other.key : name > other.name;
  }
};

// Unsigned numbers in the order of elements, ascending: as ops/cpu/indexing/order_keys.h.
// IEEE numbers compare as sign and magnitude: those below 0 have all bits turned, the others the sign alone.
// One key for all dtypes leaves one network to compile, and to compare by integers.
template <class T>
__device__ uint64_t KeyOf(T x) {
  constexpr uint64_t kSign = uint64_t{1} << 63;
  if constexpr (std::is_same_v<T, double>) {
    if (x != x) return ~uint64_t{0};
    const uint64_t bits = std::bit_cast<uint64_t>(x == 0 ? 0.0 : x);
    return (bits & kSign) != 0 ? ~bits : bits | kSign;
  } else if constexpr (kIsFloatingType<T>) {
    return KeyOf<double>(static_cast<double>(x));  // exact
  } else {
    return static_cast<uint64_t>(static_cast<int64_t>(x)) ^ kSign;
  }
}

// Items of 24 bytes: 24 KiB of shared memory, where 48 need no special launch. A thread for each pair.
constexpr int kSharedItems = 1024;
constexpr int kSortThreads = kSharedItems / 2;

// Rows of x that are sorted together, and what they become. Pointers are to the first one's elements.
struct SortShape {
  int64_t outers = 0;   // rows are (outer, column)
  int64_t columns = 0;  // at most `inner`
  int64_t inner = 1;    // elements that go with one index of the dim
  int64_t length = 0;   // of x along the dim
  int64_t taken = 0;    // of the outputs
  int64_t padded = 0;   // length, as a power of two
  int64_t first = 0;
  bool descending = false;

  __host__ __device__ int64_t rows() const { return outers * columns; }
};

template <class T>
__global__ void LoadItemsKernel(SortShape n, const T* x, const int64_t* names, SortItem* items) {
  ForEachOfGrid(n.rows() * n.padded, [&](int64_t i) {
    const int64_t row = i / n.padded;
    const int64_t at = i - row * n.padded;
    SortItem item = {~uint64_t{0}, std::numeric_limits<int64_t>::max(), -1};  // behind all others
    if (at < n.length) {
      const int64_t offset = (row / n.columns * n.length + at) * n.inner + row % n.columns;
      const uint64_t key = KeyOf(x[offset]);
      item.key = n.descending ? ~key : key;
      item.name = names != nullptr ? names[offset] : n.first + at;
      item.position = at;
    }
    items[i] = item;
  });
}

// The pair `pair` of a stage of the network: elements `distance` apart, in runs of `run` that alternate in
// direction.
// A bitonic network (Batcher, "Sorting networks and their applications", 1968): its comparisons follow from
// the length alone, so all rows take the same steps. It is not stable by itself: the name in the comparison
// makes the order total, and the result that of a stable sort.
__device__ void OrderPair(SortItem* items, int64_t pair, int64_t distance, int64_t run, int64_t offset) {
  const int64_t low = pair / distance * 2 * distance + pair % distance;
  SortItem& a = items[low];
  SortItem& b = items[low + distance];
  const bool ascending = ((low + offset) & run) == 0;
  if (a.After(b) != ascending) return;
  const SortItem other = a;
  a = b;
  b = other;
}

// Stages of the network that stay within blocks of kSharedItems (or the row, if shorter): with `whole` all of
// them up to runs of a block, else those of `run` from the distance of half a block down.
__global__ void __launch_bounds__(kSortThreads)
    SortInBlocksKernel(SortItem* items, int block_items, int64_t padded, int64_t run, bool whole) {
  __shared__ SortItem shared[kSharedItems];
  SortItem* const own = items + int64_t{blockIdx.x} * block_items;
  const int64_t offset = int64_t{blockIdx.x} * block_items % padded;  // in the row
  for (int i = static_cast<int>(threadIdx.x); i < block_items; i += static_cast<int>(blockDim.x))
    shared[i] = own[i];
  __syncthreads();
  for (int64_t runs = whole ? 2 : run; runs <= (whole ? block_items : run); runs *= 2) {
    const int64_t half = runs / 2;
    // A barrier per stage: each pair's elements come from two pairs of the stage before.
    for (int64_t distance = half < block_items / 2 ? half : block_items / 2; distance > 0; distance /= 2) {
      for (int pair = static_cast<int>(threadIdx.x); pair < block_items / 2;
           pair += static_cast<int>(blockDim.x)) {
        OrderPair(shared, pair, distance, runs, offset);
      }
      __syncthreads();
    }
  }
  for (int i = static_cast<int>(threadIdx.x); i < block_items; i += static_cast<int>(blockDim.x))
    own[i] = shared[i];
}

// One stage of the network over all rows, of pairs further apart than a block.
__global__ void SortStageKernel(SortItem* items, int64_t padded, int64_t pairs, int64_t distance,
                                int64_t run) {
  ForEachOfGrid(pairs, [&](int64_t i) {
    const int64_t half = padded / 2;
    OrderPair(items + i / half * padded, i % half, distance, run, /*offset=*/0);
  });
}

template <class T>
__global__ void StoreItemsKernel(SortShape n, const T* x, const SortItem* items, T rest, int64_t rest_name,
                                 T* values, int64_t* names) {
  ForEachOfGrid(n.rows() * n.taken, [&](int64_t i) {
    const int64_t k = i % n.columns;
    const int64_t at = i / n.columns % n.taken;
    const int64_t outer = i / n.columns / n.taken;
    const int64_t to = (outer * n.taken + at) * n.inner + k;
    const SortItem item = items[(outer * n.columns + k) * n.padded + at];
    const bool is_there = item.position >= 0;
    // Items carry places, not values: they stay as small for every dtype, and the bits of x come out, those
    // of a NaN too.
    values[to] = is_there ? x[(outer * n.length + item.position) * n.inner + k] : rest;
    names[to] = is_there ? item.name : rest_name;
  });
}

void SortItems(CudaStreamRef stream, SortItem* items, int64_t rows, int64_t padded) {
  if (padded < 2) return;
  const int block_items = static_cast<int>(std::min<int64_t>(padded, kSharedItems));
  const CudaGrid in_blocks = {.blocks = static_cast<unsigned>(rows * padded / block_items),
                              .threads = static_cast<unsigned>(std::max(32, block_items / 2))};
  // Stages within a block run in shared memory, all in one launch; only pairs further apart go through
  // memory, a launch per stage.
  LaunchCuda(stream, in_blocks, SortInBlocksKernel, items, block_items, padded, int64_t{0}, true);
  for (int64_t run = 2 * int64_t{block_items}; run <= padded; run *= 2) {
    for (int64_t distance = run / 2; distance >= block_items; distance /= 2) {
      const int64_t pairs = rows * padded / 2;
      LaunchCuda(stream, GridOver(pairs), SortStageKernel, items, padded, pairs, distance, run);
    }
    LaunchCuda(stream, in_blocks, SortInBlocksKernel, items, block_items, padded, run, false);
  }
}

// Calls sort(the chunk, its first outer, its first column) for chunks of the rows of `all`, each of as many as there is
// workspace for. Rows are independent, so that nothing else follows from how they are cut.
template <class Sort>
void ForEachChunk(const SortShape& all, int64_t most_rows, const Sort& sort) {
  SortShape n = all;
  const int64_t columns = std::min(all.inner, most_rows);
  const int64_t outers = std::max<int64_t>(1, most_rows / all.inner);
  for (int64_t outer = 0; outer < all.outers; outer += outers) {
    n.outers = std::min(outers, all.outers - outer);
    for (int64_t column = 0; column < all.inner; column += columns) {
      n.columns = std::min(columns, all.inner - column);
      sort(n, outer, column);
    }
  }
}

}  // namespace

void CudaSortRows(const KernelCallBase& call, const Tensor& x, const CudaRowOrder& order,
                  const Tensor& values, const Tensor& names) {
  if (values.num_elements() == 0) return;
  const auto& allocator = call.context.allocator;
  const Tensor dense = CudaDense(x, allocator);
  const Tensor own_names = order.names.defined() ? CudaIndices(order.names, allocator) : Tensor();
  SortShape n;
  n.length = x.shape()[order.dim];
  n.taken = values.shape()[order.dim];
  for (int dim = order.dim + 1; dim < x.ndim(); ++dim) n.inner *= x.shape()[dim];
  n.columns = n.inner;
  n.outers = values.num_elements() / (n.taken * n.inner);
  n.padded =
      static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>({n.length, n.taken, 1}))));
  n.first = order.first;
  n.descending = order.descending;
  // Items have up to 24 times the bytes of x, so rows go in chunks. One fills a GPU several times over; its items
  // are about what the GPU's cache holds (an estimate, not measured).
  constexpr int64_t kMostBytes = int64_t{32} << 20;
  constexpr auto kItemBytes = static_cast<int64_t>(sizeof(SortItem));
  const int64_t most_rows = std::clamp<int64_t>(kMostBytes / (n.padded * kItemBytes), 1, n.rows());
  const Tensor workspace =
      Tensor::Empty(allocator, DType::kI64, {most_rows * n.padded * kItemBytes / ItemSize(DType::kI64)});
  auto* const items = static_cast<SortItem*>(workspace.data());
  const CudaStreamRef stream = KernelStream(call);
  VisitDType(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    ForEachChunk(n, most_rows, [&](const SortShape& chunk, int64_t outer, int64_t column) {
      const int64_t from = outer * n.length * n.inner + column, to = outer * n.taken * n.inner + column;
      const T* const own = dense.data<T>() + from;
      LaunchCuda(stream, GridOver(chunk.rows() * n.padded), LoadItemsKernel<T>, chunk, own,
                 own_names.defined() ? own_names.data<int64_t>() + from : nullptr, items);
      SortItems(stream, items, chunk.rows(), n.padded);
      LaunchCuda(stream, GridOver(chunk.rows() * n.taken), StoreItemsKernel<T>, chunk, own, items,
                 ConvertElement<T>(order.rest), order.rest_name, values.data<T>() + to,
                 names.data<int64_t>() + to);
    });
  });
}

}  // namespace weft

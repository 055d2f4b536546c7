#ifndef WEFT_OPS_CUDA_BLOCKS_MANY_TENSORS_H_
#define WEFT_OPS_CUDA_BLOCKS_MANY_TENSORS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/blocks/kernel_stream.h"
#include "runtime/device/cuda/launch.h"

namespace weft {

// What all kernels' parameters may take, less what a kernel has besides a table of tensors.
// 4096 bytes are what every GPU and toolkit takes; CUDA 12.1 allows 32764 from Volta on.
inline constexpr int kTableBytes = 4096 - 64;

inline constexpr int kManyThreads = 256;

// The elements [begin, end) of a tensor: what a block works on.
struct ManyChunk {
  int tensor = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// Tensors of any number of elements for one launch, passed by value: as many as a kernel's parameters hold.
// Each is cut into chunks, a block takes one: so blocks have equal work but for the last of each tensor.
// Item, trivially copyable and aligned to at most 8, is what a kernel needs of a tensor.
template <class Item>
struct ManyTensors {
  static constexpr int64_t kChunk = 16384;  // elements; a multiple of all that threads take at once
  static constexpr int kMost =
      (kTableBytes - 16) / static_cast<int>(sizeof(Item) + sizeof(int64_t) + sizeof(int));

  int num_tensors = 0;
  int num_chunks = 0;
  int first_chunks[kMost];  // ascending
  int64_t counts[kMost];
  Item items[kMost];

  bool is_full() const { return num_tensors == kMost; }

  // One of `count` elements, above 0.
  void Add(int64_t count, const Item& item) {
    first_chunks[num_tensors] = num_chunks;
    counts[num_tensors] = count;
    items[num_tensors++] = item;
    num_chunks += static_cast<int>((count + kChunk - 1) / kChunk);
  }

  CudaGrid Grid() const { return {.blocks = static_cast<unsigned>(num_chunks), .threads = kManyThreads}; }

  __device__ ManyChunk ChunkOf(int chunk) const {
    // The last tensor that begins no later.
    int tensor = 0;
    for (int behind = num_tensors; behind - tensor > 1;) {
      const int middle = (tensor + behind) / 2;
      if (first_chunks[middle] <= chunk) {
        tensor = middle;
      } else {
        behind = middle;
      }
    }
    const int64_t begin = int64_t{chunk - first_chunks[tensor]} * kChunk;
    const int64_t left = counts[tensor] - begin;
    return {tensor, begin, begin + (left < kChunk ? left : kChunk)};
  }
};

// Fills tables and launches them: `launch(table)` for each that is full, and for the rest.
template <class Item, class Launch>
class ManyLaunches {
 public:
  explicit ManyLaunches(const Launch& launch) : launch_(launch) {}

  // Does nothing where there are no elements.
  void Add(int64_t count, const Item& item) {
    static_assert(sizeof(ManyTensors<Item>) <= kTableBytes && alignof(Item) <= 8);
    if (count == 0) return;
    if (table_.is_full()) Finish();
    table_.Add(count, item);
  }
  void Finish() {
    if (table_.num_tensors > 0) launch_(table_);
    table_.num_tensors = table_.num_chunks = 0;
  }

 private:
  const Launch& launch_;
  ManyTensors<Item> table_;
};

}  // namespace weft

#endif  // WEFT_OPS_CUDA_BLOCKS_MANY_TENSORS_H_

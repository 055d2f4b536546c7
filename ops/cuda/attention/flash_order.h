#ifndef WEFT_OPS_CUDA_ATTENTION_FLASH_ORDER_H_
#define WEFT_OPS_CUDA_ATTENTION_FLASH_ORDER_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace weft {

// Which tile of which head a block takes. Heads go in sections whose walked tiles fit the second cache
// together; within one, tiles go in the order of their numbers, which begin with those that take longest.
struct FlashOrder {
  unsigned tiles = 0;
  unsigned heads = 0;
  unsigned section = 1;

  // `head_bytes`: what the blocks of one head walk over.
  static FlashOrder Of(int64_t rows, int tile_rows, int64_t heads, int64_t head_bytes) {
    // Less than half of an A100's 40 MB, since the tiles that stay, and what is written, pass through it too.
    constexpr int64_t kSectionBytes = 16 << 20;
    const int64_t section = kSectionBytes / (head_bytes + 1);
    return {static_cast<unsigned>((rows + tile_rows - 1) / tile_rows), static_cast<unsigned>(heads),
            static_cast<unsigned>(section < 1       ? 1
                                  : section < heads ? section
                                                    : heads)};
  }
  unsigned blocks() const { return tiles * heads; }

  struct Place {
    int tile = 0;
    int head = 0;

    bool operator==(const Place&) const = default;
  };
  __device__ Place Find(unsigned block) const {
    const unsigned first = block / (section * tiles) * section;
    const unsigned here = section < heads - first ? section : heads - first;
    const unsigned place = block - first * tiles;
    return {static_cast<int>(place / here), static_cast<int>(first + place % here)};
  }
};

}  // namespace weft

#endif  // WEFT_OPS_CUDA_ATTENTION_FLASH_ORDER_H_

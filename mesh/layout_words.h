#ifndef WEFT_MESH_LAYOUT_WORDS_H_
#define WEFT_MESH_LAYOUT_WORDS_H_

#include <cstdint>
#include <cstring>

#include "mesh/layout.h"

namespace weft {

// A layout as whole numbers, to send it to other ranks of the same program.
inline constexpr int kLayoutWords = 2;
static_assert(sizeof(Layout) == kLayoutWords * sizeof(int64_t));

inline void PutLayout(const Layout& layout, int64_t* words) { std::memcpy(words, &layout, sizeof(layout)); }

inline Layout GetLayout(const int64_t* words) {
  Layout layout;
  std::memcpy(static_cast<void*>(&layout), words, sizeof(layout));
  return layout;
}

}  // namespace weft

#endif  // WEFT_MESH_LAYOUT_WORDS_H_

#include "ops/cpu/convolution/image_columns.h"

#include <algorithm>

namespace weft {
namespace {

// Part of one output row: pixels [q, q + count) meet image elements `from`, from + step, ...; outside
// [first, last) of them lies padding.
// Copied by stretches of an output row, whose padding is worked out once: no test per
// element.
struct RowSegment {
  int64_t column;  // of the first pixel in the columns
  int64_t count;
  int64_t from;   // column in the image of the first pixel, maybe outside
  int64_t first;  // pixels of the segment that lie inside the image
  int64_t last;
  int64_t row;  // of the image; -1 outside
};

// The least i >= 0 for which start + i * step >= bound.
int64_t StepsUntil(int64_t start, int64_t step, int64_t bound) {
  return start >= bound ? 0 : (bound - start + step - 1) / step;
}

// Calls body(segment) for the output rows that `pixels` touch, as kernel element (i, j) sees them.
template <class Body>
void ForEachSegment(const ImageWindows& w, const PixelRange& pixels, int64_t i, int64_t j, const Body& body) {
  for (int64_t pixel = pixels.begin; pixel < pixels.end;) {
    const int64_t p = pixel / w.output[1];
    const int64_t q = pixel % w.output[1];
    RowSegment segment;
    segment.column = pixel - pixels.begin;
    segment.count = std::min(w.output[1] - q, pixels.end - pixel);
    const int64_t row = p * w.stride[0] + i * w.dilation[0] - w.padding[0];
    segment.row = row >= 0 && row < w.image[0] ? row : -1;
    segment.from = q * w.stride[1] + j * w.dilation[1] - w.padding[1];
    segment.first = std::min(segment.count, StepsUntil(segment.from, w.stride[1], 0));
    segment.last =
        std::clamp(StepsUntil(segment.from, w.stride[1], w.image[1]), segment.first, segment.count);
    body(segment);
    pixel += segment.count;
  }
}

}  // namespace

// Row by row of the columns: each is a channel shifted by one kernel element, so that with a stride of 1 a
// stretch of it is one copy.
template <class T>
void GatherColumns(const ImageWindows& w, const T* image, int64_t channels, const PixelRange& pixels,
                   T* columns) {
  for (int64_t row = 0; row < channels * w.kernel_size(); ++row) {
    const int64_t i = row % w.kernel_size() / w.kernel[1];
    const int64_t j = row % w.kernel[1];
    const T* const channel = image + row / w.kernel_size() * w.image_size();
    T* const to_row = columns + row * pixels.size();
    ForEachSegment(w, pixels, i, j, [&](const RowSegment& s) {
      T* const to = to_row + s.column;
      if (s.row < 0) {
        std::fill_n(to, s.count, T(0));
        return;
      }
      const T* const from = channel + s.row * w.image[1] + s.from;
      std::fill_n(to, s.first, T(0));
      if (w.stride[1] == 1) {
        std::copy(from + s.first, from + s.last, to + s.first);
      } else {
        for (int64_t k = s.first; k < s.last; ++k) to[k] = from[k * w.stride[1]];
      }
      std::fill(to + s.last, to + s.count, T(0));
    });
  }
}

template <class T>
void ScatterColumns(const ImageWindows& w, const T* columns, int64_t channels, const PixelRange& pixels,
                    T* image) {
  for (int64_t row = 0; row < channels * w.kernel_size(); ++row) {
    const int64_t i = row % w.kernel_size() / w.kernel[1];
    const int64_t j = row % w.kernel[1];
    T* const channel = image + row / w.kernel_size() * w.image_size();
    const T* const from_row = columns + row * pixels.size();
    ForEachSegment(w, pixels, i, j, [&](const RowSegment& s) {
      if (s.row < 0) return;
      const T* const from = from_row + s.column;
      T* const to = channel + s.row * w.image[1] + s.from;
      for (int64_t k = s.first; k < s.last; ++k) to[k * w.stride[1]] += from[k];
    });
  }
}

template void GatherColumns(const ImageWindows&, const float*, int64_t, const PixelRange&, float*);
template void GatherColumns(const ImageWindows&, const double*, int64_t, const PixelRange&, double*);
template void ScatterColumns(const ImageWindows&, const float*, int64_t, const PixelRange&, float*);
template void ScatterColumns(const ImageWindows&, const double*, int64_t, const PixelRange&, double*);

}  // namespace weft

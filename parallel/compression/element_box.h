// Which elements of a rank's gradient another rank owns.

#ifndef WEFT_PARALLEL_COMPRESSION_ELEMENT_BOX_H_
#define WEFT_PARALLEL_COMPRESSION_ELEMENT_BOX_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "runtime/tensor/shape.h"

namespace weft {

// A box of a contiguous row-major tensor. Its elements have the order that they have in a tensor of the box's shape. In
// the whole they are runs of neighbours of one length: rows of the box, or more, where the box has whole rows.
//
//   whole    box               runs
//   [4, 3]   [2, 3] at [2, 0]  6 elements at 6
//   [4, 3]   [4, 1] at [0, 2]  1 element at 2, 5, 8, 11
//   [4, 3]   [0, 3] at [4, 0]  none
//
// A value: copies, compares.
class ElementBox {
 public:
  // No elements of anything.
  ElementBox() = default;
  // Shape: three of one ndim; offset + shape within the whole, unless the box is empty.
  ElementBox(const Shape& whole, const Shape& offset, const Shape& shape);
  // Elements [begin, begin + size) of a tensor, whatever its shape.
  static ElementBox Stretch(int64_t begin, int64_t size);

  int64_t num_elements() const { return num_runs_ * run_length_; }
  // Where element i of the box is in the whole.
  // Cost: a division per dim that is cut before the last.
  int64_t IndexOf(int64_t i) const { return BeginOf(i / run_length_) + i % run_length_; }

  // Calls `function` with the first element and the length of each run, ascending.
  template <class Function>
  void ForEachRun(const Function& function) const {
    ForEachRun(0, num_elements(), function);
  }
  // The same of elements [begin, begin + size) of the box: of the first run and of the last perhaps a part.
  template <class Function>
  void ForEachRun(int64_t begin, int64_t size, const Function& function) const {
    while (size > 0) {
      const int64_t at = begin % run_length_;
      const int64_t length = std::min(size, run_length_ - at);
      function(BeginOf(begin / run_length_) + at, length);
      begin += length;
      size -= length;
    }
  }

  // The box's elements of a whole tensor.
  template <class T>
  std::vector<double> Values(absl::Span<T> whole) const {
    std::vector<double> values;
    values.reserve(num_elements());
    ForEachRun([&](int64_t begin, int64_t length) {
      values.insert(values.end(), whole.begin() + begin, whole.begin() + begin + length);
    });
    return values;
  }

  bool operator==(const ElementBox&) const = default;

 private:
  // Of the dims that runs are along, outermost first: how many places there are, and how far apart in the whole.
  struct Loop {
    int64_t count = 1;
    int64_t stride = 0;
    bool operator==(const Loop&) const = default;
  };

  int64_t BeginOf(int64_t run) const;

  int64_t first_ = 0;
  int64_t run_length_ = 0;
  int64_t num_runs_ = 0;
  std::vector<Loop> loops_;
};

}  // namespace weft

#endif  // WEFT_PARALLEL_COMPRESSION_ELEMENT_BOX_H_

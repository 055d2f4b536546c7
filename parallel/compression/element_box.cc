#include "parallel/compression/element_box.h"

#include "runtime/base/error.h"

namespace weft {

ElementBox::ElementBox(const Shape& whole, const Shape& offset, const Shape& shape) {
  WEFT_CHECK(whole.ndim() == offset.ndim() && whole.ndim() == shape.ndim(), "a box of ", shape.ToString(),
             " at ", offset.ToString(), " of ", whole.ToString());
  if (shape.num_elements() == 0) return;
  // Dims behind the last that is cut are whole, and so part of a run.
  int cut = whole.ndim() - 1;
  int64_t stride = 1;  // of dim `cut`
  while (cut > 0 && shape[cut] == whole[cut]) stride *= whole[cut--];
  run_length_ = num_runs_ = 1;
  if (cut >= 0) {
    run_length_ = shape[cut] * stride;
    first_ = offset[cut] * stride;
    stride *= whole[cut];
  }
  for (int dim = cut - 1; dim >= 0; --dim) {
    first_ += offset[dim] * stride;
    num_runs_ *= shape[dim];
    if (shape[dim] > 1) loops_.insert(loops_.begin(), {.count = shape[dim], .stride = stride});
    stride *= whole[dim];
  }
}

ElementBox ElementBox::Stretch(int64_t begin, int64_t size) {
  ElementBox box;
  box.first_ = begin;
  box.run_length_ = size;
  box.num_runs_ = size > 0 ? 1 : 0;
  return box;
}

int64_t ElementBox::BeginOf(int64_t run) const {
  int64_t begin = first_;
  for (size_t i = loops_.size(); i-- > 0;) {
    begin += run % loops_[i].count * loops_[i].stride;
    run /= loops_[i].count;
  }
  return begin;
}

}  // namespace weft

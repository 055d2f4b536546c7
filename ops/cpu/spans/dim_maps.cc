#include "ops/cpu/spans/dim_maps.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/spans/parallel_copy.h"
#include "runtime/tensor/convert.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// The loops of one CopyByMaps: units of `block` elements, contiguous on both sides, along dim `dim`, in rows
// over the dims before it.
// The maps are lists, one per dim, so slices, flips, rolls, pads and selections share one loop, and a source
// is worked out once per index of a dim and not once per element.
template <class T>
class MappedCopy {
 public:
  MappedCopy(const Tensor& x, const Tensor& y, absl::Span<const DimMap> maps, int dim, int64_t block,
             double nowhere)
      : x_(x),
        maps_(maps),
        dim_(dim),
        block_(block),
        length_(y.shape()[dim]),
        stride_(x.strides()[dim]),
        shape_(y.shape()),
        from_(x.data<T>()),
        to_(y.data<T>()),
        // Converted once: -0 in floating types, which a sum of pieces cannot tell from nothing,
        // and 0 in others.
        absent_(ConvertElement<T>(kAbsent)),
        nowhere_(ConvertElement<T>(nowhere)) {}

  void Run(int64_t begin, int64_t end) const {
    while (begin < end) {
      const int64_t row = begin / length_;
      const int64_t last = std::min(end, (row + 1) * length_);
      RunRow(RowOffset(row), begin - row * length_, last - row * length_, to_ + begin * block_);
      begin = last;
    }
  }

 private:
  int64_t Source(int dim, int64_t index) const { return maps_[dim].empty() ? index : maps_[dim][index]; }

  // The place of a row in x, or kElsewhere or kNowhere, which wins.
  int64_t RowOffset(int64_t row) const {
    int64_t offset = 0;
    int64_t missing = 0;
    for (int dim = dim_ - 1; dim >= 0; --dim) {
      const int64_t source = Source(dim, row % shape_[dim]);
      row /= shape_[dim];
      missing = std::min(missing, source);
      offset += source * x_.strides()[dim];
    }
    return missing < 0 ? missing : offset;
  }

  // Indices that follow each other in x too are one copy: a slice or a roll is one or two per row, and only a
  // flip or a selection goes unit by unit.
  void RunRow(int64_t row, int64_t begin, int64_t end, T* to) const {
    for (int64_t i = begin, run = 1; i < end; i += run, to += run * block_) {
      const int64_t source = Source(dim_, i);
      const int64_t missing = std::min({row, source, int64_t{0}});
      run = 1;
      if (missing < 0) {
        while (i + run < end && std::min({row, Source(dim_, i + run), int64_t{0}}) == missing) ++run;
        std::fill_n(to, run * block_, missing == kNowhere ? nowhere_ : absent_);
        continue;
      }
      if (stride_ == block_) {
        while (i + run < end && Source(dim_, i + run) == source + run) ++run;
      }
      const T* const from = from_ + row + source * stride_;
      if (run * block_ == 1) {
        *to = *from;
      } else {
        std::memcpy(to, from, run * block_ * sizeof(T));
      }
    }
  }

  const Tensor& x_;
  absl::Span<const DimMap> maps_;
  int dim_;
  int64_t block_;
  int64_t length_;
  int64_t stride_;
  const Shape shape_;
  const T* from_;
  T* to_;
  T absent_;
  T nowhere_;
};

}  // namespace

DimMap MakeDimMap(const ShardBox& x, const ShardBox& y, int dim, absl::FunctionRef<int64_t(int64_t)> source) {
  DimMap map(y.shape[dim]);
  for (int64_t i = 0; i < y.shape[dim]; ++i) {
    const int64_t global = source(y.offset[dim] + i);
    const int64_t local = global - x.offset[dim];
    const bool here = local >= 0 && local < x.shape[dim];
    map[i] = global == kNowhere ? kNowhere : here ? local : kElsewhere;
  }
  return map;
}

void CopyByMaps(KernelContext& context, const Tensor& x, const Tensor& y, absl::Span<const DimMap> maps,
                double nowhere) {
  if (y.num_elements() == 0 || y.device().type == DeviceType::kMeta) return;
  // Trailing dims that stay as they are and lie dense in x are moved as one block.
  int dim = y.ndim() - 1;
  int64_t block = 1;
  for (; dim >= 0 && maps[dim].empty(); --dim) {
    if (y.shape()[dim] != 1 && x.strides()[dim] != block) break;
    block *= y.shape()[dim];
  }
  if (dim < 0) {
    ParallelCopy(context.pool, x, y);
    return;
  }
  VisitDType(y.dtype(), [&](auto tag) {
    const MappedCopy<typename decltype(tag)::type> copy(x, y, maps, dim, block, nowhere);
    constexpr int64_t kTaskElements = int64_t{1} << 16;
    context.pool.ParallelFor(y.num_elements() / block, std::max<int64_t>(1, kTaskElements / block),
                             [&](int64_t begin, int64_t end) { copy.Run(begin, end); });
  });
}

Tensor SlicePiece(KernelContext& context, const Tensor& x, const ShardBox& x_box, const ShardBox& y_box,
                  int dim, int64_t start) {
  const int64_t first = start + y_box.offset[dim] - x_box.offset[dim];  // in this rank's piece
  const int64_t length = y_box.shape[dim];
  if (length == 0) return x.Slice(dim, 0, 0);
  // All ranks alike: whether a tensor shares memory with x must not depend on the piece.
  const bool is_whole = x_box.shape[dim] == x_box.global_shape[dim];
  const bool is_all = x_box.global_shape[dim] == y_box.global_shape[dim];
  if (is_whole || is_all) return x.Slice(dim, first, length);
  const Tensor y = Tensor::Empty(context.allocator, x.dtype(), y_box.shape);
  // By calls that know every device: views have one kernel for all.
  const int64_t begin = std::clamp<int64_t>(-first, 0, length);
  const int64_t end = std::clamp<int64_t>(x_box.shape[dim] - first, begin, length);
  FillTensor(y.Slice(dim, 0, begin), kAbsent);
  if (begin < end)
    ParallelCopy(context.pool, x.Slice(dim, first + begin, end - begin), y.Slice(dim, begin, end - begin));
  FillTensor(y.Slice(dim, end, length - end), kAbsent);
  return y;
}

}  // namespace weft

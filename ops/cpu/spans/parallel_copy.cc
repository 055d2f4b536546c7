#include "ops/cpu/spans/parallel_copy.h"

#include <algorithm>

#include "runtime/tensor/copy.h"

namespace weft {

namespace {

// Elements of one task: enough that starting it does not count.
constexpr int64_t kTaskElements = int64_t{1} << 16;

// The dim along which `from` is contiguous, if it is another than the one along which `to` is, and both are
// long enough that blocks of the two pay; else -1.
// Row by row, such a copy reads a line of 64 bytes for each element, and a long row has lost it before the
// next one needs its neighbours.
int TransposedDim(const Tensor& from, const Tensor& to) {
  const int last = to.ndim() - 1;
  if (last < 1 || !to.IsContiguous() || from.strides()[last] == 1 || to.shape()[last] < 64) return -1;
  for (int dim = 0; dim < last; ++dim) {
    if (from.strides()[dim] == 1 && to.shape()[dim] >= 64) return dim;
  }
  return -1;
}

// By square blocks, so that the lines of both sides, and their neighbours, are the work of one task. The
// other dims go one index at a time.
void CopyTransposed(ThreadPool& pool, const Tensor& from, const Tensor& to, int dim) {
  constexpr int64_t kEdge = 256;
  const int last = to.ndim() - 1;
  const int64_t row_blocks = (to.shape()[dim] + kEdge - 1) / kEdge;
  const int64_t column_blocks = (to.shape()[last] + kEdge - 1) / kEdge;
  const int64_t others = to.num_elements() / (to.shape()[dim] * to.shape()[last]);
  const int64_t block_elements = std::min(kEdge, to.shape()[dim]) * std::min(kEdge, to.shape()[last]);
  const int64_t grain = std::max<int64_t>(1, kTaskElements / block_elements);
  pool.ParallelFor(others * row_blocks * column_blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      Tensor source = from;
      Tensor target = to;
      const auto narrow = [&](int d, int64_t first, int64_t extent) {
        source = source.Slice(d, first, extent);
        target = target.Slice(d, first, extent);
      };
      const int64_t row = block / column_blocks % row_blocks * kEdge;
      const int64_t column = block % column_blocks * kEdge;
      narrow(dim, row, std::min(kEdge, to.shape()[dim] - row));
      narrow(last, column, std::min(kEdge, to.shape()[last] - column));
      int64_t rest = block / column_blocks / row_blocks;
      for (int d = last - 1; d >= 0; --d) {
        if (d == dim) continue;
        narrow(d, rest % to.shape()[d], 1);
        rest /= to.shape()[d];
      }
      CopyTensor(source, target);
    }
  });
}

}  // namespace

void ParallelCopy(ThreadPool& pool, const Tensor& from, const Tensor& to) {
  const int64_t count = to.num_elements();
  // A view's kernel may copy what is on another device: that is one call there.
  if (count < 2 * kTaskElements || from.shape() != to.shape() || to.device().type != DeviceType::kCpu) {
    CopyTensor(from, to);
    return;
  }
  if (const int transposed = TransposedDim(from, to); transposed >= 0) {
    CopyTransposed(pool, from, to, transposed);
    return;
  }
  // The outermost dim that gives enough pieces; the longest if none does.
  int dim = 0;
  while (dim < to.ndim() && to.shape()[dim] < count / kTaskElements) ++dim;
  if (dim == to.ndim()) {
    dim = static_cast<int>(std::max_element(to.shape().begin(), to.shape().end()) - to.shape().begin());
  }
  const int64_t extent = to.shape()[dim];
  const int64_t grain = std::max<int64_t>(1, kTaskElements / (count / extent));
  pool.ParallelFor(extent, grain, [&](int64_t begin, int64_t end) {
    CopyTensor(from.Slice(dim, begin, end - begin), to.Slice(dim, begin, end - begin));
  });
}

Tensor ParallelClone(ThreadPool& pool, const Tensor& from, const std::shared_ptr<Allocator>& allocator) {
  Tensor to = Tensor::Empty(allocator, from.dtype(), from.shape());
  ParallelCopy(pool, from, to);
  return to;
}

}  // namespace weft

#include "ops/cpu/parallel_copy.h"

#include <algorithm>

#include "runtime/tensor/copy.h"

namespace weft {

void ParallelCopy(ThreadPool& pool, const Tensor& from, const Tensor& to) {
  // Elements of one task: enough that starting it does not count.
  constexpr int64_t kTaskElements = int64_t{1} << 16;
  const int64_t count = to.num_elements();
  if (count < 2 * kTaskElements || from.shape() != to.shape()) {
    CopyTensor(from, to);
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

#include "ops/cpu/indexing/sum_by_index.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "ops/cpu/spans/element_blocks.h"
#include "runtime/base/error.h"
#include "runtime/tensor/convert.h"

namespace weft {
namespace {

// Columns that one task adds up.
// 256 bytes of f32 of each row: whole lines, whose neighbours are other tasks'. Each task reads the indices
// of all its terms again, so narrower blocks could mean more of that.
constexpr int64_t kColumnBlock = 64;

struct Extents {
  int64_t outer = 1;
  int64_t inner = 1;
  int64_t terms = 0;  // of src along the dim
  int64_t slots = 0;  // of y
};

// Columns [column, column + width) of one outer index; `sums` is [slots, stride] from the first of them.
// Terms go in ascending j whatever the threads, since tasks divide columns and outer indices and never the
// terms of a sum: no atomics and the same bits in every run.
template <class T, class C>
void AddTerms(const Extents& n, const T* src, const IndexView& index, int64_t outer, int64_t column,
              int64_t width, int64_t first, C* sums, int64_t stride) {
  const int64_t* const indices = index.data + outer * index.outer + column * index.inner;
  const T* const terms = src + outer * n.terms * n.inner + column;
  for (int64_t j = 0; j < n.terms; ++j) {
    const T* const term = terms + j * n.inner;
    for (int64_t k = 0; k < width; ++k) {
      // Slots of other ranks are skipped here and added there; every term is some rank's.
      const int64_t slot = indices[j * index.along + k * index.inner] - first;
      if (slot < 0 || slot >= n.slots) continue;
      C& sum = sums[slot * stride + k];
      if constexpr (std::is_integral_v<C>) {
        using Unsigned = std::make_unsigned_t<C>;  // sums wrap
        sum = static_cast<C>(static_cast<Unsigned>(sum) + static_cast<Unsigned>(term[k]));
      } else {
        sum += static_cast<C>(term[k]);
      }
    }
  }
}

template <class T>
void SumTyped(KernelContext& context, const Tensor& y, const Tensor& src, const Extents& n,
              const IndexView& index, int64_t first, double start) {
  using C = ArithmeticType<T>;
  const C zero = ConvertElement<C>(start);
  T* const to = y.data<T>();
  const T* const from = src.data<T>();
  const int64_t blocks = (n.inner + kColumnBlock - 1) / kColumnBlock;
  const int64_t task_elements = std::min(n.inner, kColumnBlock) * (n.terms + n.slots);
  const int64_t grain = std::max<int64_t>(1, (int64_t{1} << 15) / std::max<int64_t>(1, task_elements));
  context.pool.ParallelFor(n.outer * blocks, grain, [&](int64_t begin, int64_t end) {
    std::vector<C> scratch;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t outer = task / blocks;
      const int64_t column = task % blocks * kColumnBlock;
      const int64_t width = std::min(kColumnBlock, n.inner - column);
      T* const slots = to + outer * n.slots * n.inner + column;
      // Halves add up in float scratch and are rounded once; other types need none.
      if constexpr (std::is_same_v<T, C>) {
        for (int64_t v = 0; v < n.slots; ++v) std::fill_n(slots + v * n.inner, width, zero);
        AddTerms<T, C>(n, from, index, outer, column, width, first, slots, n.inner);
      } else {
        scratch.assign(n.slots * width, zero);
        AddTerms<T, C>(n, from, index, outer, column, width, first, scratch.data(), width);
        for (int64_t v = 0; v < n.slots; ++v) {
          for (int64_t k = 0; k < width; ++k) slots[v * n.inner + k] = static_cast<T>(scratch[v * width + k]);
        }
      }
    }
  });
}

}  // namespace

void SumByIndex(KernelContext& context, const Tensor& y, const Tensor& src, int dim, const IndexView& index,
                int64_t first, double start) {
  Extents n;
  for (int d = 0; d < y.ndim(); ++d) {
    if (d < dim) n.outer *= y.shape()[d];
    if (d > dim) n.inner *= y.shape()[d];
  }
  n.terms = src.shape()[dim];
  n.slots = y.shape()[dim];
  if (y.num_elements() == 0) return;
  VisitDType(y.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, uint8_t> || std::is_same_v<T, bool>) {
      WEFT_CHECK(false, "no sums of ", DTypeName(y.dtype()));
    } else {
      SumTyped<T>(context, y, src, n, index, first, start);
    }
  });
}

}  // namespace weft

#include "ops/indexing/top_k.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "ops/cpu/indexing/order_keys.h"
#include "ops/cpu/spans/dim_rows.h"
#include "ops/cpu/spans/row_view.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

using Call = KernelCall<TopKAttributes, NoScalars>;

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

// What no element is worse than, NaN left out: it is never the worst when largest are sought, and else a NaN.
template <class C>
C Worst(bool largest) {
  using Limits = std::numeric_limits<C>;
  if constexpr (Limits::has_quiet_NaN) return largest ? -Limits::infinity() : Limits::quiet_NaN();
  return largest ? Limits::lowest() : Limits::max();
}

// An element by its key, where it stands in the row, and the index it goes by.
template <class C>
struct Candidate {
  Keyed<C> keyed;
  int64_t position;

  bool operator<(const Candidate& other) const { return keyed < other.keyed; }
};

// The k best of every row of inputs[0]; element i of a row goes by the index index_of(row's inputs[1], i).
template <class IndexOf>
void Select(const Call& call, const Tensor& names, const IndexOf& index_of) {
  const TopKAttributes& a = call.attributes();
  const DimMask mask = DimMaskOf({a.dim});
  const DimRows x_rows = RowsAlong(call.inputs[0], mask, call.context);
  const DimRows name_rows = names.defined() ? RowsAlong(names, mask, call.context) : DimRows();
  const DimRows value_rows = RowsAlong(call.outputs[0], mask, call.context);
  const DimRows index_rows = RowsAlong(call.outputs[1], mask, call.context);
  const int64_t n = x_rows.num_columns;
  const int64_t count = std::min(a.k, n);
  VisitDType(call.inputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ArithmeticType<T>;
    ParallelForDimRows(call.context, x_rows.num_rows, std::max(n, a.k), [&](int64_t begin, int64_t end) {
      DimRowReader<T> reader(x_rows, end);
      std::optional<DimRowReader<int64_t>> name_reader;
      if (names.defined()) name_reader.emplace(name_rows, end);
      DimRowWriter<T> values(value_rows, end);
      DimRowWriter<int64_t> indices(index_rows, end);
      std::vector<Candidate<C>> order(n);
      for (int64_t row = begin; row < end; ++row) {
        const C* const x = reader.Read(row);
        const int64_t* const name = name_reader ? name_reader->Read(row) : nullptr;
        for (int64_t i = 0; i < n; ++i) order[i] = {MakeKeyed(x[i], index_of(name, i), a.largest), i};
        // Linear in n for the selection, and only the k best are sorted. Of equal keys the lower index comes
        // first, so the result does not depend on how the algorithm moves them.
        if (count < n) std::nth_element(order.begin(), order.begin() + count, order.end());
        std::sort(order.begin(), order.begin() + count);
        C* const value = values.Row(row);
        int64_t* const index = indices.Row(row);
        for (int64_t i = 0; i < count; ++i) {
          value[i] = x[order[i].position];
          index[i] = order[i].keyed.index;
        }
        // A piece may hold fewer than k elements: it gives candidates that lose to every other, and the merge
        // over pieces drops them.
        std::fill(value + count, value + a.k, Worst<C>(a.largest));
        std::fill(index + count, index + a.k, kNone);
      }
    });
  });
}

// Whole or a piece: indices count from the beginning of the whole.
void TopKCandidates(const Call& call) {
  const int64_t offset = call.input_boxes[0].offset[call.attributes().dim];
  Select(call, Tensor(), [offset](const int64_t*, int64_t i) { return offset + i; });
}

void TopKMerge(const Call& call) {
  Select(call, call.inputs[1], [](const int64_t* names, int64_t i) { return names[i]; });
}

const RegisterKernel kRegister[] = {
    {kTopK, DeviceType::kCpu, TopKCandidates},
    {kTopKCandidates, DeviceType::kCpu, TopKCandidates},
    {kTopKMerge, DeviceType::kCpu, TopKMerge},
};

}  // namespace
}  // namespace weft

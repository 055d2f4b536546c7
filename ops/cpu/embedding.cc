#include "ops/embedding.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "ops/cpu/indices.h"
#include "ops/cpu/row_view.h"
#include "ops/kernel.h"

namespace weft {
namespace {

void Embedding(const KernelCall<NoAttributes, NoScalars>& call) {
  const Tensor tokens = DenseIndices(call.inputs[0], call.context);
  const ShardBox& box = call.input_boxes[1];
  CheckIndices("embedding", "token", tokens, call.input_boxes[0], box.global_shape[0]);
  // [v, d] of this piece; other rows are another rank's.
  const RowView table = RowsOf(call.inputs[1], call.context);
  const int64_t first = box.offset[0];
  const int64_t item_size = ItemSize(table.tensor.dtype());
  const int64_t row_bytes = table.num_columns * item_size;
  const char* from = static_cast<const char*>(table.tensor.data());
  char* to = static_cast<char*>(call.outputs[0].data());
  const int64_t* values = tokens.data<int64_t>();
  ParallelForRows(call.context, tokens.num_elements(), table.num_columns, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = values[i] - first;
      if (row >= 0 && row < table.num_rows) {
        std::memcpy(to + i * row_bytes, from + row * table.stride * item_size, row_bytes);
      } else {
        std::memset(to + i * row_bytes, 0, row_bytes);
      }
    }
  });
}

// (local row of the table, position), sorted: the positions of one token lie together, in order.
using Occurrences = std::vector<std::pair<int64_t, int64_t>>;

Occurrences SortedOccurrences(const Tensor& tokens, int64_t first, int64_t num_rows) {
  Occurrences occurrences;
  const int64_t* values = tokens.data<int64_t>();
  for (int64_t i = 0; i < tokens.num_elements(); ++i) {
    const int64_t row = values[i] - first;
    if (row >= 0 && row < num_rows) occurrences.emplace_back(row, i);
  }
  std::sort(occurrences.begin(), occurrences.end());
  return occurrences;
}

// Cuts the occurrences where the token changes, into groups of at least 512.
std::vector<size_t> GroupBorders(const Occurrences& occurrences) {
  std::vector<size_t> borders = {0};
  for (size_t i = 1; i < occurrences.size(); ++i) {
    if (occurrences[i].first != occurrences[i - 1].first && i - borders.back() >= 512) borders.push_back(i);
  }
  borders.push_back(occurrences.size());
  return borders;
}

constexpr int64_t kColumnBlock = 64;

// Sums the rows of dy of each token in occurrences[begin, end), columns [column, column + width), in the
// compute type, and rounds once.
template <class T>
void SumOccurrences(const Occurrences& occurrences, size_t begin, size_t end, const RowView& dy,
                    int64_t column, int64_t width, T* table) {
  using C = ComputeType<T>;
  const T* from = dy.tensor.data<T>() + column;
  C sums[kColumnBlock];
  for (size_t i = begin; i < end;) {
    const int64_t row = occurrences[i].first;
    std::fill(sums, sums + width, C(0));
    for (; i < end && occurrences[i].first == row; ++i) {
      const T* addend = from + occurrences[i].second * dy.stride;
      for (int64_t j = 0; j < width; ++j) sums[j] += static_cast<C>(addend[j]);
    }
    T* to = table + row * dy.num_columns + column;
    for (int64_t j = 0; j < width; ++j) to[j] = static_cast<T>(sums[j]);
  }
}

// Sorting makes every row of the table the work of one task (no atomics, a fixed order) and lets bf16 round
// once.
void EmbeddingGrad(const KernelCall<EmbeddingGradAttributes, NoScalars>& call) {
  const Tensor tokens = DenseIndices(call.inputs[0], call.context);
  CheckIndices("embedding_grad", "token", tokens, call.input_boxes[0], call.attributes().vocabulary);
  const RowView dy = RowsOf(call.inputs[1], call.context);
  const Tensor& table = call.outputs[0];
  const int64_t num_rows = table.shape()[0];
  const int64_t row_bytes = dy.num_columns * ItemSize(table.dtype());
  ParallelForRows(call.context, num_rows, dy.num_columns, [&](int64_t begin, int64_t end) {
    std::memset(static_cast<char*>(table.data()) + begin * row_bytes, 0, (end - begin) * row_bytes);
  });

  const Occurrences occurrences = SortedOccurrences(tokens, call.output_boxes[0].offset[0], num_rows);
  const std::vector<size_t> borders = GroupBorders(occurrences);
  const int64_t num_groups = static_cast<int64_t>(borders.size()) - 1;
  const int64_t num_column_blocks = (dy.num_columns + kColumnBlock - 1) / kColumnBlock;
  VisitFloating(table.dtype(), "embedding_grad", [&](auto tag) {
    using T = typename decltype(tag)::type;
    call.context.pool.Run(num_groups * num_column_blocks, [&](int64_t task) {
      const int64_t group = task / num_column_blocks;
      const int64_t column = task % num_column_blocks * kColumnBlock;
      SumOccurrences<T>(occurrences, borders[group], borders[group + 1], dy, column,
                        std::min(kColumnBlock, dy.num_columns - column), table.data<T>());
    });
  });
}

const RegisterKernel kRegister(kEmbedding, DeviceType::kCpu, Embedding);
const RegisterKernel kRegisterGrad(kEmbeddingGrad, DeviceType::kCpu, EmbeddingGrad);

}  // namespace
}  // namespace weft

#include "ops/indexing/embedding.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "ops/cpu/spans/float_spans.h"
#include "ops/cpu/spans/indices.h"
#include "ops/cpu/spans/row_view.h"
#include "ops/cpu/spans/sum_elements.h"
#include "ops/op/absent.h"
#include "ops/op/kernel.h"
#include "runtime/tensor/convert_spans.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// Rows lie anywhere: the hardware's prefetchers find the first lines of one too late. Null is allowed.
void PrefetchRow(const char* row, int64_t row_bytes) {
  constexpr int64_t kMostBytes = 2048;
  for (int64_t i = 0; row != nullptr && i < std::min(row_bytes, kMostBytes); i += 64) {
    __builtin_prefetch(row + i);
  }
}

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
  // What stands for a row of another rank.
  const Tensor absent = Tensor::Empty(call.context.allocator, table.tensor.dtype(), {table.num_columns});
  FillTensor(absent, kAbsent);
  ParallelForRows(call.context, tokens.num_elements(), table.num_columns, [&](int64_t begin, int64_t end) {
    const auto source = [&](int64_t i) -> const char* {
      const int64_t row = values[i] - first;
      return row >= 0 && row < table.num_rows ? from + row * table.stride * item_size : nullptr;
    };
    for (int64_t i = begin; i < end; ++i) {
      if (i + 1 < end) PrefetchRow(source(i + 1), row_bytes);
      const char* const row = source(i);
      const void* const elements = row != nullptr ? row : absent.data();
      if (row_bytes > 0) std::memcpy(to + i * row_bytes, elements, row_bytes);
    }
  });
}

// The positions of tokens by local row of the table, in order: those of row r are positions[starts[r]] up to
// positions[starts[r + 1]].
struct Occurrences {
  std::vector<int64_t> starts;
  std::vector<int64_t> positions;

  int64_t CountOf(int64_t row) const { return starts[row + 1] - starts[row]; }
};

// By counting: two passes over the tokens.
// A sort by counting is stable, so that the rows of a token are added in the order of their positions.
Occurrences SortedOccurrences(const Tensor& tokens, int64_t first, int64_t num_rows) {
  Occurrences result;
  const int64_t* const values = tokens.data<int64_t>();
  std::vector<int64_t> next(num_rows + 1, 0);
  const auto for_each = [&](const auto& visit) {
    for (int64_t i = 0; i < tokens.num_elements(); ++i) {
      const int64_t row = values[i] - first;
      if (row >= 0 && row < num_rows) visit(row, i);
    }
  };
  for_each([&](int64_t row, int64_t) { ++next[row + 1]; });
  for (int64_t row = 0; row < num_rows; ++row) next[row + 1] += next[row];
  result.starts = next;
  result.positions.resize(next[num_rows]);
  for_each([&](int64_t row, int64_t i) { result.positions[next[row]++] = i; });
  return result;
}

// Rows [first_row, last_row) of the table, and columns [first_column, last_column) of them.
struct TableBlock {
  int64_t first_row = 0;
  int64_t last_row = 0;
  int64_t first_column = 0;
  int64_t last_column = 0;
};

// Cuts the table into blocks of like amounts of work, by shape and tokens alone. A row that alone is too
// much, that of a padding token, say, is cut along its columns.
std::vector<TableBlock> CutTable(const Occurrences& occurrences, int64_t num_rows, int64_t num_columns) {
  constexpr int64_t kBlockElements = int64_t{1} << 16;
  // A row of a table's gradient is cut by columns since its sum may not be: its terms keep their order.
  constexpr int64_t kColumns = 64;
  std::vector<TableBlock> blocks;
  int64_t begin = 0;
  int64_t elements = 0;
  const auto close = [&](int64_t end) {
    if (begin < end) blocks.push_back({begin, end, 0, num_columns});
    begin = end;
    elements = 0;
  };
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t row_elements = (1 + occurrences.CountOf(row)) * num_columns;
    if (row_elements > 4 * kBlockElements) {
      close(row);
      for (int64_t column = 0; column < num_columns; column += kColumns) {
        blocks.push_back({row, row + 1, column, std::min(column + kColumns, num_columns)});
      }
      begin = row + 1;
      continue;
    }
    elements += row_elements;
    if (elements >= kBlockElements) close(row + 1);
  }
  close(num_rows);
  return blocks;
}

void AddSpan(const float* a, const float* b, float* sum, int64_t n) {
  FloatSpan(BinaryFunction::kAdd)(a, b, sum, n);
}
void AddSpan(const double* a, const double* b, double* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] = a[i] + b[i];
}

// The sum of `count` >= 2 rows of dy, those at `positions`, rounded once.
// Floats add up in the row itself, the first addition reading two terms, so that it need not be cleared.
// Halves need float sums beside it.
template <class T>
void SumRows(const T* dy, int64_t stride, const int64_t* positions, int64_t count, int64_t width,
             std::vector<ComputeType<T>>& sums, T* to) {
  const auto row = [&](int64_t i) { return dy + positions[i] * stride; };
  if constexpr (std::is_same_v<T, ComputeType<T>>) {
    AddSpan(row(0), row(1), to, width);
    for (int64_t i = 2; i < count; ++i) AddSpan(to, row(i), to, width);
  } else {
    sums.resize(width);
    ConvertSpan(row(0), sums.data(), width);
    for (int64_t i = 1; i < count; ++i) {
      AddElementRows</*kSquares=*/false>(row(i), /*rows=*/1, width, width, sums.data());
    }
    ConvertSpan(sums.data(), to, width);
  }
}

// Sums the rows of dy of each token of a block in the compute type, in their order. `table` is
// [.., dy.num_columns].
template <class T>
void SumOccurrences(const Occurrences& occurrences, const TableBlock& block, const RowView& dy, T* table) {
  const T* const from = dy.tensor.data<T>() + block.first_column;
  const int64_t width = block.last_column - block.first_column;
  const int64_t end = static_cast<int64_t>(occurrences.positions.size());
  std::vector<ComputeType<T>> sums;
  for (int64_t row = block.first_row; row < block.last_row; ++row) {
    const int64_t first = occurrences.starts[row];
    const int64_t* const positions = occurrences.positions.data() + first;
    const int64_t count = occurrences.CountOf(row);
    T* const to = table + row * dy.num_columns + block.first_column;
    if (count == 0) {
      std::memset(static_cast<void*>(to), 0, width * sizeof(T));
      continue;
    }
    // Two rows of dy ahead, in the order in which they are read: mostly the next block follows.
    for (int64_t i = first + 2; i < std::min(end, first + 2 + count); ++i) {
      PrefetchRow(reinterpret_cast<const char*>(from + occurrences.positions[i] * dy.stride),
                  width * static_cast<int64_t>(sizeof(T)));
    }
    if (count == 1) {
      std::memcpy(static_cast<void*>(to), from + positions[0] * dy.stride, width * sizeof(T));
    } else {
      SumRows(from, dy.stride, positions, count, width, sums, to);
    }
  }
}

// Sorting makes every element of the table the work of one task (no atomics, a fixed order), lets bf16 round
// once, and writes each row once, those of no token too.
void EmbeddingGrad(const KernelCall<EmbeddingGradAttributes, NoScalars>& call) {
  const Tensor tokens = DenseIndices(call.inputs[0], call.context);
  CheckIndices("embedding_grad", "token", tokens, call.input_boxes[0], call.attributes().vocabulary);
  const RowView dy = RowsOf(call.inputs[1], call.context);
  const Tensor& table = call.outputs[0];
  const int64_t num_rows = table.shape()[0];
  const Occurrences occurrences = SortedOccurrences(tokens, call.output_boxes[0].offset[0], num_rows);
  const std::vector<TableBlock> blocks = CutTable(occurrences, num_rows, dy.num_columns);
  VisitFloating(table.dtype(), "embedding_grad", [&](auto tag) {
    using T = typename decltype(tag)::type;
    call.context.pool.Run(static_cast<int64_t>(blocks.size()), [&](int64_t block) {
      SumOccurrences<T>(occurrences, blocks[block], dy, table.data<T>());
    });
  });
}

const RegisterKernel kRegister(kEmbedding, DeviceType::kCpu, Embedding);
const RegisterKernel kRegisterGrad(kEmbeddingGrad, DeviceType::kCpu, EmbeddingGrad);

}  // namespace
}  // namespace weft

#include <cuda_runtime.h>

#include <cstring>

#include "ops/cuda/blocks/indices.h"
#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/cuda/blocks/words.h"
#include "ops/cuda/indexing/sum_by_index.h"
#include "ops/indexing/embedding.h"
#include "ops/op/absent.h"
#include "ops/op/kernel.h"
#include "runtime/device/cuda/launch.h"
#include "runtime/tensor/convert.h"
#include "runtime/tensor/cuda/grid_loop.h"

namespace weft {
namespace {

// Of the piece of the table that lies here, in words.
struct EmbeddingTable {
  int64_t vocabulary = 0;  // of the whole
  int64_t first = 0;
  int64_t num_rows = 0;
  int64_t stride = 0;
  int64_t row_words = 0;
};

// `bad`: what stands for a token outside the vocabulary; `absent`: for another rank's row.
// Rows are copied by the widest words that fit, and a thread takes a word: neighbours read and write side by
// side within a row.
template <class Word>
__global__ void EmbeddingKernel(EmbeddingTable n, const int64_t* tokens, int64_t count, const Word* table,
                                Word bad, Word absent, Word* y) {
  ForEachOfGrid(count, [&](int64_t i) {
    const int64_t position = i / n.row_words;
    const int64_t token = tokens[position];
    const int64_t row = token - n.first;
    Word word = absent;
    if (token < 0 || token >= n.vocabulary) {
      word = bad;
    } else if (row >= 0 && row < n.num_rows) {
      word = table[row * n.stride + (i - position * n.row_words)];
    }
    y[i] = word;
  });
}

// A word of elements of `dtype`, each what `element` gives for the C++ type.
template <class Word, class Element>
Word WordOf(DType dtype, const Element& element) {
  Word word = {};
  VisitFloating(dtype, "embedding", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T value = element(tag);
    if constexpr (sizeof(T) <= sizeof(Word)) {
      for (size_t at = 0; at < sizeof(Word); at += sizeof(T)) {
        std::memcpy(reinterpret_cast<char*>(&word) + at, &value, sizeof(T));
      }
    }
  });
  return word;
}

void Embedding(const KernelCall<NoAttributes, NoScalars>& call) {
  const Tensor& y = call.outputs[0];
  if (y.num_elements() == 0) return;
  const auto& allocator = call.context.allocator;
  const Tensor tokens = CudaIndices(call.inputs[0], allocator);
  const ShardBox& box = call.input_boxes[1];
  const Tensor table = call.inputs[1].strides()[1] == 1 || call.inputs[1].shape()[1] == 1
                           ? call.inputs[1]
                           : CloneTensor(call.inputs[1], allocator);
  const int64_t item = ItemSize(y.dtype());
  const int64_t row_bytes = table.shape()[1] * item;
  const int64_t stride_bytes = table.strides()[0] * item;
  const int64_t bytes = WidestWord(row_bytes | stride_bytes, table.data(), y.data());
  const EmbeddingTable n = {.vocabulary = box.global_shape[0],
                            .first = box.offset[0],
                            .num_rows = table.shape()[0],
                            .stride = stride_bytes / bytes,
                            .row_words = row_bytes / bytes};
  VisitWordOf(bytes, [&](auto tag) {
    using Word = typename decltype(tag)::type;
    if constexpr (sizeof(Word) == 1) {
      WEFT_CHECK(false, "a floating table of bytes");
    } else {
      const Word bad =
          WordOf<Word>(y.dtype(), [](auto of) { return BadElement<typename decltype(of)::type>(); });
      const Word absent = WordOf<Word>(
          y.dtype(), [](auto of) { return ConvertElement<typename decltype(of)::type>(kAbsent); });
      LaunchCuda(KernelStream(call), GridOver(y.num_bytes() / bytes), EmbeddingKernel<Word>, n,
                 tokens.data<int64_t>(), y.num_bytes() / bytes, static_cast<const Word*>(table.data()), bad,
                 absent, static_cast<Word*>(y.data()));
    }
  });
}

// Every row of the table is one block's work: no atomics on sums, a fixed order, one rounding, and each row
// written once, those of no token too.
void EmbeddingGrad(const KernelCall<EmbeddingGradAttributes, NoScalars>& call) {
  const auto& allocator = call.context.allocator;
  const Tensor& table = call.outputs[0];
  const Tensor tokens = CudaIndices(call.inputs[0], allocator);
  const Tensor dy = CudaDense(call.inputs[1], allocator);
  const int64_t count = tokens.num_elements();
  CudaSumByList(call, table, dy.Reshape({count, table.shape()[1]}), /*dim=*/0, tokens.Reshape({count}),
                CudaSlots(call.output_boxes[0], /*dim=*/0, table.dtype()));
}

const RegisterKernel kRegister(kEmbedding, DeviceType::kCuda, Embedding);
const RegisterKernel kRegisterGrad(kEmbeddingGrad, DeviceType::kCuda, EmbeddingGrad);

}  // namespace
}  // namespace weft

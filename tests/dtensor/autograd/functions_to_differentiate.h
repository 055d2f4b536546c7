#ifndef WEFT_TESTS_DTENSOR_AUTOGRAD_FUNCTIONS_TO_DIFFERENTIATE_H_
#define WEFT_TESTS_DTENSOR_AUTOGRAD_FUNCTIONS_TO_DIFFERENTIATE_H_

#include <functional>
#include <vector>

#include "dtensor/functions.h"
#include "tests/dtensor/sharded_values.h"

// Composite functions of a few small f64 operands, for tests that differentiate them.

namespace weft {

using Operands = std::vector<DTensor>;

// A composite function to a scalar; all of its operands are leaves.
struct Function {
  const char* name;
  std::vector<Tensor> operands;
  std::function<DTensor(const Operands&)> call;
};

inline DTensor Targets(const DTensor& like, const Shape& shape, int64_t classes) {
  std::vector<int64_t> values(shape.num_elements());
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>(i * 7 + 1) % classes;
  values[0] = -100;
  return Lay(like.context(), Tensor::FromValues<int64_t>(shape, values),
             Layout(shape.ndim(), like.layout().num_axes()));
}

inline std::vector<Function> Functions() {
  return {
      {"mlp",
       {RandomF64({3, 4}, 1), RandomF64({4, 5}, 2), RandomF64({5}, 3), RandomF64({5, 4}, 4)},
       [](const Operands& x) { return Mean(Square(x[0] + MatMul(Gelu(MatMul(x[0], x[1]) + x[2]), x[3]))); }},
      {"normed",
       {RandomF64({3, 4}, 1), RandomF64({4}, 2, 0.5, 1.5), RandomF64({4}, 3), RandomF64({4}, 4, 0.5, 1.5)},
       [](const Operands& x) {
         return Sum(Tanh(LayerNormalize(x[0], x[1], x[2])) * RmsNormalize(x[0], x[3]));
       }},
      {"softmax of a quotient",
       {RandomF64({3, 4}, 1), RandomF64({3, 1}, 2, 1, 2)},
       [](const Operands& x) { return Sum(Square(Softmax(x[0] / x[1]))); }},
      {"cross-entropy",
       {RandomF64({2, 3, 4}, 1), RandomF64({5, 4}, 2)},
       [](const Operands& x) {
         const DTensor logits = Contract(x[0], "bsd", x[1], "vd", "bsv");
         return CrossEntropy(logits, Targets(x[0], {2, 3}, 5), {.label_smoothing = 0.1}).Mean();
       }},
      {"attention",
       {RandomF64({2, 3, 4}, 1), RandomF64({4, 3, 2, 2}, 2), RandomF64({2, 2, 4}, 3)},
       [](const Operands& x) {
         const std::vector<DTensor> qkv = Unbind(Contract(x[0], "bsd", x[1], "dthe", "bsthe"), 2);
         const DTensor y = CausalAttention(Rotary(qkv[0]), Rotary(qkv[1]), qkv[2]);
         return Sum(Square(Contract(y, "bshe", x[2], "hed", "bsd")));
       }},
      {"embedding",
       {RandomF64({5, 4}, 1), RandomF64({7, 4}, 2)},
       [](const Operands& x) {
         const Tensor tokens = Tensor::FromValues<int64_t>({2, 3}, {0, 4, 4, 2, 1, 4});
         const DTensor e =
             EmbeddingLookup(Lay(x[0].context(), tokens, Layout(2, x[0].layout().num_axes())), x[0]);
         return Sum(Exp(e + Slice(x[1], 0, 2, 3)));
       }},
      {"shapes",
       {RandomF64({4, 3}, 1), RandomF64({2, 3}, 2), RandomF64({4, 3}, 3)},
       [](const Operands& x) {
         const DTensor joined = Concat({x[0], x[1], x[2]}, 0);         // [10, 3]
         const DTensor cut = Transpose(Slice(joined, 0, 1, 8), 0, 1);  // [3, 8]
         const DTensor folded = Reshape(cut, {3, 2, 4});
         return Sum(Square(Stack({folded, folded * folded}, 1)) * Mean(folded, {0}));
       }},
      {"many uses of one leaf",
       {RandomF64({3, 3}, 1)},
       [](const Operands& x) { return Sum(MatMul(x[0], x[0]) * x[0] + Transpose(x[0], 0, 1) - Silu(x[0])); }},
      {"broadcasting",
       {RandomF64({3, 4}, 1), RandomF64({4}, 2, 1, 2), RandomF64({3, 1}, 3), RandomF64({}, 4, 1, 2)},
       [](const Operands& x) { return Sum(Sqrt(x[1]) * (x[0] - x[2]) / x[3] * Log(x[1] + x[3])); }},
  };
}

}  // namespace weft

#endif  // WEFT_TESTS_DTENSOR_AUTOGRAD_FUNCTIONS_TO_DIFFERENTIATE_H_

#ifndef WEFT_BENCHMARKS_STEP_PRODUCTS_H_
#define WEFT_BENCHMARKS_STEP_PRODUCTS_H_

#include <string>
#include <vector>

#include "dtensor/context/mesh_context.h"
#include "dtensor/nn/gpt.h"
#include "ops/product/contract.h"
#include "runtime/base/dtype.h"
#include "runtime/tensor/shape.h"

namespace weft {

// A matrix product as a training step runs it: named dims, and how often in one step.
struct StepProduct {
  std::string name;  // "up/forward", "up/dx", "up/dw"
  ContractAttributes labels;
  Shape x;
  Shape w;
  int64_t count = 1;

  // Two a multiply-add, of one call.
  double flops() const;
};

// The products of one step of a GPT outside attention, in forward and for both gradients: qkv, proj, up and
// down of every layer, and the head.
std::vector<StepProduct> ProductsOf(const GptConfig& config, int64_t batch, int64_t tokens);

// Flops of attention's own products in one step: two products forward and five backward, of scores of which
// the causal mask discards half.
double AttentionFlops(const GptConfig& config, int64_t batch, int64_t tokens);

// Flops of a training step that are the model's own: all of the above but attention's scores made again, one
// product of seven.
double StepFlops(const GptConfig& config, int64_t batch, int64_t tokens);

// The median time of the call by dispatch, its output's allocation included, over at least `seconds` and
// three calls.
double SecondsOf(const StepProduct& product, const IntrusivePtr<MeshContext>& context, DType dtype,
                 double seconds);

}  // namespace weft

#endif  // WEFT_BENCHMARKS_STEP_PRODUCTS_H_

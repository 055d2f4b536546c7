#ifndef WEFT_EXAMPLES_GPT_GPT_TEXT_H_
#define WEFT_EXAMPLES_GPT_GPT_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "dtensor/nn/gpt.h"
#include "parallel/pipeline/executor.h"
#include "runtime/data/batches.h"
#include "runtime/data/tokenizer.h"

namespace weft {

// Between text on the host and a GPT over a mesh.

// One batch, this rank's rows only.
struct GptBatch {
  DTensor tokens;            // i32 [b, s]
  DTensor targets;           // i32 [b, s]
  int64_t batch_offset = 0;  // where it begins in the step's batch, if it is a part of that
};

// Lays `batch` samples of `context` tokens over the mesh; `get(first, count)` returns the rows that this rank
// holds.
GptBatch MakeGptBatch(const IntrusivePtr<MeshContext>& context, const Layout& layout, int64_t batch,
                      int64_t sequence, absl::FunctionRef<TokenBatch(int64_t first, int64_t count)> get);

// The mean loss over all samples of `batches`, `batch` at a time, without dropout. `pipeline`: runs the model, if that is
// cut into stages.
double Evaluate(Gpt& model, const EvalBatches& batches, const Layout& layout, int64_t batch,
                PipelineExecutor* pipeline = nullptr);

struct SampleOptions {
  int64_t num_tokens = 500;
  double temperature = 0.8;  // 0: always the likeliest token
  int64_t top_k = 0;         // 0: all tokens
  uint64_t seed = 1337;
};

// Continues `prompt` token by token, each drawn from the model's distribution over the last `context` tokens.
// Every rank returns the same tokens. `pipeline`: as of Evaluate.
// Errors: InvalidArgument for an empty prompt; DataLoss for scores that are not finite.
std::vector<int32_t> SampleGpt(Gpt& model, const Layout& layout, std::vector<int32_t> prompt,
                               int64_t vocabulary, const SampleOptions& options,
                               PipelineExecutor* pipeline = nullptr);

}  // namespace weft

#endif  // WEFT_EXAMPLES_GPT_GPT_TEXT_H_

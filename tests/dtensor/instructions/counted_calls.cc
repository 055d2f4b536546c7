// Calls one thing again and again, for valgrind's callgrind to count its instructions: see count_test.sh.
//
//   counted_calls CASE NUM_CALLS
//
// The calls to count run inside CountedCalls, which --toggle-collect names; before it, enough of them to fill
// the caches and the pools. Rank 0 of a mesh of two runs alone: on layouts that move nothing, or, in training steps, with
// collectives that fill their outputs from its own pieces. What lanes' workers do is not counted.

#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/types/span.h"
#include "benchmarks/own_pieces_world.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/optim/adamw.h"
#include "parallel/parallelize.h"
#include "parallel/trainer.h"
#include "runtime/launch/run_ranks.h"

// Keeps its name, whatever the compiler inlines.
extern "C" [[gnu::noinline]] void CountedCalls(const std::function<void()>& call, int64_t num_calls) {
  for (int64_t i = 0; i < num_calls; ++i) call();
}

namespace weft {
namespace {

// A GPT of two layers that trains on one batch.
class GptTraining {
 public:
  GptTraining(World& world, const Plan& plan) : world_(world) {
    const auto context =
        Parallelize(model_, world_, DeviceMesh::Parse("a=2"), plan, {.start_values = StartValues::kTrust});
    tokens_ = DTensor::Distribute(context, Tensor::FromValues<int32_t>({4, 8}, std::vector<int32_t>(32, 1)),
                                  Layout::Parse("[a, -]", context->mesh()));
    optimizer_ = std::make_unique<AdamW>(model_.AllParameters(), AdamWOptions{});
    trainer_ = std::make_unique<Trainer>(model_, *optimizer_, TrainerOptions{});
  }
  void Step() {
    trainer_->Step(/*num_tokens=*/32, [this] { return model_.Loss(tokens_, tokens_).Mean(); });
  }

 private:
  OwnPiecesWorld world_;
  Gpt model_{GptConfig{.vocabulary = 31, .context = 8, .layers = 2, .heads = 2, .dim = 16}};
  DTensor tokens_;
  std::unique_ptr<AdamW> optimizer_;
  std::unique_ptr<Trainer> trainer_;
};

// Made at the first step.
std::function<void()> StepsUnder(World& world, const Plan& plan) {
  return [&world, plan, training = std::make_shared<std::unique_ptr<GptTraining>>()] {
    if (*training == nullptr) *training = std::make_unique<GptTraining>(world, plan);
    (*training)->Step();
  };
}

struct SumOfLeaves {
  std::vector<DTensor> leaves;
  DTensor sum;
};

// The gradients of a sum of 1000 leaves, one added after another, with respect to the first so many, to which all sums lead.
// The graph is made at the first call.
std::function<void()> GradOfFirst(const DTensor& x, int num_inputs) {
  return [x, num_inputs, graph = std::make_shared<SumOfLeaves>()] {
    while (graph->leaves.size() < 1000) {
      graph->leaves.push_back(x.RequiresGrad());
      graph->sum = graph->sum.defined() ? Add(graph->sum, graph->leaves.back()) : graph->leaves.back();
    }
    Grad(absl::MakeConstSpan(&graph->sum, 1), absl::MakeConstSpan(graph->leaves).first(num_inputs),
         {.seeds = absl::MakeConstSpan(&x, 1), .retain_graph = true});
  };
}

// What a case calls, by its name.
std::map<std::string, std::function<void()>> Cases(const IntrusivePtr<MeshContext>& context) {
  const DTensor a = Full(context, DType::kF32, {32}, 0.5, Layout(1, 1).WithShard(0, 0));
  const DTensor b = Full(context, DType::kF32, {32}, 0.25, a.layout());
  const DTensor leaf = a.RequiresGrad();
  const DTensor x = Full(context, DType::kF32, {8, 4}, 0.5, Layout(2, 1).WithShard(0, 0));
  const DTensor w = Full(context, DType::kF32, {4, 4}, 0.5);
  const DTensor whole = Full(context, DType::kF32, {32}, 0.5);
  return {
      {"add", [=] { Add(a, b); }},
      {"add_recorded", [=] { Add(leaf, b); }},
      {"matmul", [=] { MatMul(x, w); }},
      {"redistribute", [=] { whole.Redistribute(a.layout()); }},
      {"chain_forward_backward",
       [=] {
         const DTensor fresh = a.RequiresGrad();
         Backward(Mul(Add(Mul(fresh, b), b), b), b);
       }},
      {"grad_of_few", GradOfFirst(a, 10)},
      {"grad_of_many", GradOfFirst(a, 1000)},
      {"gpt_step_ddp", StepsUnder(context->world(), {{"", DataParallel("a")}})},
      {"gpt_step_fsdp", StepsUnder(context->world(), {{"blocks.*", FullyShard("a")}, {"", FullyShard("a")}})},
  };
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  int64_t num_calls = 0;
  if (argc != 3 || !absl::SimpleAtoi(argv[2], &num_calls)) {
    std::fprintf(stderr, "usage: counted_calls CASE NUM_CALLS\n");
    return 2;
  }
  bool found = false;
  weft::RunRanks(2, [&](weft::World& world) {
    if (world.rank() != 0) return;
    const auto cases = weft::Cases(weft::Bind(world, weft::DeviceMesh::Parse("a=2")));
    const auto named = cases.find(argv[1]);
    if (named == cases.end()) return;
    found = true;
    for (int i = 0; i < 20; ++i) named->second();
    CountedCalls(named->second, num_calls);
  });
  if (!found) std::fprintf(stderr, "counted_calls: no case '%s'\n", argv[1]);
  return found ? 0 : 2;
}

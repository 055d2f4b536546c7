// A model of which tests of the scheduler leave parts out, and the plans that they train it under.

#ifndef WEFT_TESTS_PARALLEL_SCHEDULER_CHAIN_H_
#define WEFT_TESTS_PARALLEL_SCHEDULER_CHAIN_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/functions.h"
#include "dtensor/nn/linear.h"
#include "parallel/plan.h"
#include "parallel/styles.h"

namespace weft {

inline constexpr int kBlocks = 4;
inline constexpr int64_t kDim = 6;

// Blocks that are called in whatever order the test says, beside a product of the root's own.
class Chain : public Module {
 public:
  Chain() {
    for (int i = 0; i < kBlocks; ++i) {
      blocks.push_back(std::make_unique<Linear>(this, absl::StrCat("blocks.", i), kDim, kDim));
    }
  }

  std::vector<int> order = {0, 1, 2, 3};
  std::set<int>
      by_hand;  // blocks whose parameters the chain uses itself, so that their Forward is not called
  std::vector<std::unique_ptr<Linear>> blocks;
  Parameter own{this, "own", {.shape = {kDim, kDim}, .initializer = Initializer::Normal(0, 0.3)}};

 protected:
  DTensor Forward(const DTensor& x) override {
    DTensor y = MatMul(x, own.Value());
    for (const int block : order) {
      Linear& linear = *blocks[block];
      const bool calls = by_hand.count(block) == 0;
      y = Tanh(calls ? linear(y) : MatMul(y, linear.weight.Value()) + linear.bias->Value());
    }
    return MatMul(y, own.Value());
  }
};

inline Plan PlanNamed(const std::string& name) {
  if (name == "ddp") return {{"", DataParallel("dp")}};
  if (name == "zero1") return {{"", DataParallel("dp", {.shard_state = true})}};
  if (name == "zero2") return {{"", DataParallel("dp", {.shard_gradient = true})}};
  return {{"blocks.*", FullyShard("dp")}, {"", FullyShard("dp")}};
}

}  // namespace weft

#endif  // WEFT_TESTS_PARALLEL_SCHEDULER_CHAIN_H_

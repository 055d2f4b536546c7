// Every pair of layouts over Replicate, Shard of three dims and Partial, in every nesting, on meshes of one
// to three axes and up to eight ranks: run on thread ranks, uneven and empty pieces included.

#include "gtest/gtest.h"
#include "tests/dtensor/redistribute_cases.h"
#include "tests/dtensor/sharded_values.h"

namespace weft {
namespace {

// Half of the pairs by plans of least time, half by plans of fewest bytes: of small tensors the former prefer
// few messages, the latter sent regions and permutes.
void CheckEveryPair(absl::string_view mesh, const Shape& shape, size_t part = 0, size_t num_parts = 1) {
  const std::vector<Layout> layouts = AllLayouts(DeviceMesh::Parse(mesh), shape.ndim(), {ReduceOp::kSum});
  const std::vector<RedistributeCase> all = AllPairs(layouts);
  std::vector<RedistributeCase> by_objective[2];
  for (size_t i = part; i < all.size(); i += num_parts) by_objective[i / num_parts % 2].push_back(all[i]);
  const Tensor full = WholeNumbers(DType::kF32, shape);
  CheckRedistributions(mesh, full, by_objective[0], /*column_major=*/false, PlanObjective::kTime);
  CheckRedistributions(mesh, full, by_objective[1], /*column_major=*/false, PlanObjective::kBytes);
}

const Shape kUneven = {5, 3, 2};

TEST(RedistributeEveryPairTest, OneAxis) {
  for (const char* mesh : {"a=2", "a=3", "a=4", "a=5", "a=6", "a=7", "a=8"}) {
    CheckEveryPair(mesh, kUneven);
    CheckEveryPair(mesh, {9, 0, 8});
  }
}

TEST(RedistributeEveryPairTest, TwoAxes) {
  for (const char* mesh : {"a=2,b=2", "a=2,b=3", "a=3,b=2", "a=2,b=4", "a=4,b=2"}) {
    CheckEveryPair(mesh, kUneven);
  }
  CheckEveryPair("a=2,b=2", {0, 3, 2});
}

TEST(RedistributeEveryPairTest, ThreeAxesFirstHalf) { CheckEveryPair("a=2,b=2,c=2", kUneven, 0, 2); }
TEST(RedistributeEveryPairTest, ThreeAxesSecondHalf) { CheckEveryPair("a=2,b=2,c=2", kUneven, 1, 2); }

}  // namespace
}  // namespace weft

// Every pair of layouts over Replicate, Shard of three dims and Partial, in every nesting, on meshes of one
// to three axes and up to eight ranks: run on thread ranks, uneven and empty pieces included.

#include "gtest/gtest.h"
#include "tests/dtensor/redistribute_cases.h"

namespace weft {
namespace {

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

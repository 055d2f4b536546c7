// redistribute_every_pair_test on meshes of more ranks and on more shapes. Too long for every change:
// .ci/nightly runs it.

#include "gtest/gtest.h"
#include "tests/dtensor/redistribute_cases.h"

namespace weft {
namespace {

const Shape kShapes[] = {{5, 3, 2}, {9, 0, 8}, {1, 13, 4}};

TEST(RedistributeLargeMeshesTest, OneAxis) {
  for (const char* mesh : {"a=9", "a=13", "a=16"}) {
    for (const Shape& shape : kShapes) CheckEveryPair(mesh, shape);
  }
}

TEST(RedistributeLargeMeshesTest, TwoAxes) {
  for (const char* mesh : {"a=3,b=3", "a=2,b=5", "a=5,b=2", "a=4,b=3", "a=4,b=4"}) {
    for (const Shape& shape : kShapes) CheckEveryPair(mesh, shape);
  }
}

TEST(RedistributeLargeMeshesTest, ThreeAxes) {
  for (const char* mesh : {"a=2,b=2,c=3", "a=3,b=2,c=2"}) CheckEveryPair(mesh, {5, 3, 2});
}

TEST(RedistributeLargeMeshesTest, ThreeAxesOfOtherShapes) {
  for (const Shape& shape : {Shape{9, 0, 8}, Shape{1, 13, 4}}) CheckEveryPair("a=2,b=2,c=2", shape);
}

}  // namespace
}  // namespace weft

#include "mesh/mesh_choice.h"

#include <string>

#include "gtest/gtest.h"
#include "tests/message_of.h"

namespace weft {
namespace {

TEST(MeshChoiceTest, TheLargestThatFits) {
  EXPECT_EQ(ChooseMesh("dp=auto,tp=2", 8), DeviceMesh::Parse("dp=4,tp=2"));
  EXPECT_EQ(ChooseMesh("dp=auto,tp=2", 7), DeviceMesh::Parse("dp=3,tp=2"));
  EXPECT_EQ(ChooseMesh(" tp=2 , dp = auto ", 2), DeviceMesh::Parse("tp=2,dp=1"));
  EXPECT_EQ(ChooseMesh("dp=auto", 5), DeviceMesh::Parse("dp=5"));
  for (int64_t world = 6; world < 40; ++world) {
    const DeviceMesh mesh = ChooseMesh("pp=3,dp=auto,tp=2", world);
    EXPECT_LE(mesh.num_ranks(), world);
    EXPECT_GT(mesh.num_ranks() + 6, world);
  }
}

TEST(MeshChoiceTest, WithoutAutoItIsWhatItSays) {
  EXPECT_EQ(ChooseMesh("dp=2,tp=2", 1), DeviceMesh::Parse("dp=2,tp=2"));
  EXPECT_EQ(ChooseMesh("", 3), DeviceMesh());
  EXPECT_FALSE(IsAutoMesh("dp=2"));
  EXPECT_FALSE(IsAutoMesh("auto=2"));
  EXPECT_TRUE(IsAutoMesh("dp=2, tp = auto"));
}

TEST(MeshChoiceTest, TheLargestOfAListThatFits) {
  const std::string choices = "dp=2; dp=4, tp=2; tp=2,dp=2; dp=2,tp=2";
  EXPECT_EQ(ChooseMeshAmong(choices, 9), DeviceMesh::Parse("dp=4,tp=2"));
  EXPECT_EQ(ChooseMeshAmong(choices, 8), DeviceMesh::Parse("dp=4,tp=2"));
  EXPECT_EQ(ChooseMeshAmong(choices, 7), DeviceMesh::Parse("tp=2,dp=2"));  // the first of equals
  EXPECT_EQ(ChooseMeshAmong(choices, 3), DeviceMesh::Parse("dp=2"));
}

TEST(MeshChoiceTest, WhatCannotBe) {
  EXPECT_EQ(InvalidArgumentMessage([] { ChooseMesh("dp=auto,tp=4", 3); }),
            "mesh \"dp=auto,tp=4\" needs 4 ranks at least; the world has 3");
  EXPECT_EQ(InvalidArgumentMessage([] { ChooseMesh("dp=auto,tp=auto", 3); }),
            "cannot read mesh \"dp=auto,tp=auto\": one axis at most is auto, got 2");
  EXPECT_EQ(InvalidArgumentMessage([] { ChooseMesh("dp=auto,tp=x", 3); }),
            "cannot read mesh \"dp=1,tp=x\": expected name=size, separated by commas, got 'tp=x'");
  EXPECT_EQ(InvalidArgumentMessage([] { ChooseMeshAmong("dp=4; dp=2", 1); }),
            "none of the meshes \"dp=4; dp=2\" fits a world of 1 ranks");
  EXPECT_EQ(InvalidArgumentMessage([] { ChooseMeshAmong("dp=4;", 8); }),
            "\"dp=4;\": expected meshes separated by ';', got an empty one");
}

}  // namespace
}  // namespace weft

// Weights of a model in stages, out of a file that lacks some.

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "dtensor/checkpoint/model_state.h"
#include "dtensor/checkpoint/safetensors.h"
#include "dtensor/nn/gpt.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/styles.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using testing::HasSubstr;

bool IsOfLastNorm(const std::string& name) { return absl::StartsWith(name, "ln_f"); }

// The file is the same for all ranks: each is told, also where another stage has what is missing.
TEST(StagedWeightsTest, WhatTheFileLacksEveryRankIsTold) {
  const std::string path = testing::TempDir() + "/staged_weights.safetensors";
  RunRanks(2, [&](World& world) {
    Gpt model({.vocabulary = 40, .context = 8, .layers = 2, .heads = 2, .dim = 8});
    Parallelize(model, world, DeviceMesh::Parse("pp=2"), {{"blocks.*", Pipeline("pp")}});
    SaveWeights(path, model,
                {.rename = [](const std::string& name) { return IsOfLastNorm(name) ? "" : name; }});
    SafetensorsReader reader(path);
    EXPECT_THAT(MessageOf([&] { LoadWeights(reader, model); }), HasSubstr("missing: ln_f"))
        << "rank " << world.rank();
    const LoadStateResult some = LoadWeights(reader, model, {.strict = false});
    EXPECT_FALSE(some.missing.empty()) << "rank " << world.rank();
    for (const std::string& name : some.missing) EXPECT_TRUE(IsOfLastNorm(name)) << name;
    EXPECT_TRUE(some.unexpected.empty());
  });
  std::remove(path.c_str());
}

}  // namespace
}  // namespace weft

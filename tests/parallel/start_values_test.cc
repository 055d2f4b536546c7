#include "parallel/start_values.h"

#include <string>
#include <vector>

#include "dtensor/functions.h"
#include "dtensor/nn/linear.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/replicas.h"
#include "runtime/base/error.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

class OneLayer : public Module {
 public:
  Linear layer{this, "layer", 6, 4};

 protected:
  DTensor Forward(const DTensor& x) override { return layer(x); }
};

// What Parallelize says on each rank of a layer whose ranks have these seeds.
std::vector<std::string> Messages(const std::string& mesh_text, const Plan& plan,
                                  const std::vector<uint64_t>& seeds,
                                  StartValues start_values = StartValues::kCompare) {
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  std::vector<std::string> messages(seeds.size());
  RunRanks(static_cast<int>(seeds.size()), [&](World& world) {
    OneLayer model;
    const auto context = Bind(world, mesh);
    context->state().set_seed(seeds[world.rank()]);
    messages[world.rank()] = MessageOf(
        [&] { Parallelize(model, context, plan, {.dtype = DType::kF64, .start_values = start_values}); });
  });
  return messages;
}

std::vector<std::string> OnAll(size_t num_ranks, const std::string& message) {
  return std::vector<std::string>(num_ranks, message);
}

std::string Differs(const std::string& ranks, int first) {
  return "Parallelize: parameter 'layer.weight' starts with other values on " + ranks + " than on rank " +
         std::to_string(first) +
         ": expected the same on all replicas (the same seed, the same machines), or StartValues::kBroadcast";
}

// A table that is drawn, and nothing that is trained.
class OneTable : public Module {
 public:
  ModuleBuffer table{this, "table", {.shape = {6}, .initializer = Initializer::Normal(0, 1)}};
};

TEST(StartValuesTest, BuffersToo) {
  RunRanks(2, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
    context->state().set_seed(world.rank());
    OneTable compared, taken;
    EXPECT_EQ(
        MessageOf([&] { Parallelize(compared, context, {}); }),
        "Parallelize: buffer 'table' starts with other values on rank 1 than on rank 0: expected the same on "
        "all replicas (the same seed, the same machines), or StartValues::kBroadcast");
    Parallelize(taken, context, {}, {.start_values = StartValues::kBroadcast});
    EXPECT_FALSE(CompareReplicas(*context, std::vector<NamedValue>{{"table", taken.table.Value()}}));
  });
}

TEST(StartValuesTest, ReplicasThatAgreeAreLeftAlone) {
  for (const char* mesh : {"", "dp=2", "dp=3"}) {
    const auto num_ranks = static_cast<size_t>(DeviceMesh::Parse(mesh).num_ranks());
    const Plan plan = num_ranks == 1 ? Plan() : Plan{{"", DataParallel("dp")}};
    EXPECT_EQ(Messages(mesh, plan, std::vector<uint64_t>(num_ranks, 7)), OnAll(num_ranks, "no error"))
        << mesh;
  }
}

TEST(StartValuesTest, NamesTheParameterAndTheRanks) {
  const Plan ddp = {{"", DataParallel("dp")}};
  EXPECT_EQ(Messages("dp=2", ddp, {7, 8}), OnAll(2, Differs("rank 1", 0)));
  EXPECT_EQ(Messages("dp=4", ddp, {7, 8, 7, 9}), OnAll(4, Differs("ranks 1, 3", 0)));
  const Plan zero1 = {{"", DataParallel("dp", {.shard_state = true})}};
  EXPECT_EQ(Messages("dp=3", zero1, {7, 7, 8}), OnAll(3, Differs("rank 2", 0)));
}

// Ranks with different pieces are not replicas; those of one piece are compared, and every rank is told.
TEST(StartValuesTest, PiecesAreComparedWithTheirReplicas) {
  const Plan hsdp = {{"", FullyShard("shard")}, {"", DataParallel("replica")}};
  EXPECT_EQ(Messages("replica=2,shard=2", hsdp, {7, 7, 7, 7}), OnAll(4, "no error"));
  EXPECT_EQ(Messages("replica=2,shard=2", hsdp, {7, 7, 7, 8}), OnAll(4, Differs("rank 3", 1)));
  EXPECT_EQ(Messages("replica=2,shard=2", hsdp, {7, 8, 7, 8}), OnAll(4, "no error"));
  const Plan fsdp = {{"", FullyShard("dp")}};
  EXPECT_EQ(Messages("dp=2", fsdp, {7, 8}), OnAll(2, "no error"));  // no replicas
}

TEST(StartValuesTest, ComparesNothingWhereToldTo) {
  const Plan ddp = {{"", DataParallel("dp")}};
  EXPECT_EQ(Messages("dp=2", ddp, {7, 8}, StartValues::kTrust), OnAll(2, "no error"));
}

TEST(StartValuesTest, BroadcastsTheFirstReplicas) {
  const DeviceMesh mesh = DeviceMesh::Parse("replica=2,shard=2");
  RunRanks(4, [&](World& world) {
    const Plan plan = {{"", FullyShard("shard")}, {"", DataParallel("replica")}};
    OneLayer model, expected;
    const auto context = Bind(world, mesh);
    context->state().set_seed(7);
    Parallelize(expected, context, plan, {.dtype = DType::kF64});
    context->state().set_seed(world.rank() < 2 ? 7 : 8);
    Parallelize(model, context, plan, {.dtype = DType::kF64, .start_values = StartValues::kBroadcast});
    EXPECT_TRUE(SameBits(model.layer.weight.at_rest().ToLocal(), expected.layer.weight.at_rest().ToLocal()));
  });
}

// A model that is refused has no values yet: the next call asks of its own first values what it is told to.
TEST(StartValuesTest, ARefusedModelMayBeBroadcast) {
  RunRanks(2, [](World& world) {
    const Plan ddp = {{"", DataParallel("dp")}};
    OneLayer model;
    const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
    context->state().set_seed(7 + world.rank());
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(MessageOf([&] { Parallelize(model, context, ddp); }), Differs("rank 1", 0));
      EXPECT_FALSE(model.layer.weight.materialized());
    }
    Parallelize(model, context, ddp, {.start_values = StartValues::kBroadcast});
    const std::vector<NamedValue> values = {{"weight", model.layer.weight.at_rest()}};
    EXPECT_FALSE(CompareReplicas(*context, values));
  });
}

// 16 bytes per piece of a parameter with replicas, all in one call.
TEST(StartValuesTest, CostsOneSmallAllReduce) {
  const DeviceMesh mesh = DeviceMesh::Parse("replica=2,shard=2");
  RunRanks(4, [&](World& world) {
    OneLayer model;
    const auto context = Bind(world, mesh);
    world.ledger().Clear();
    Parallelize(model, context, {{"", FullyShard("shard")}, {"", DataParallel("replica")}});
    std::vector<LedgerEntry> entries;
    for (const LedgerEntry& entry : world.ledger().entries()) {
      if (entry.kind == CollectiveKind::kAllReduce) entries.push_back(entry);  // the machine is gathered
    }
    ASSERT_EQ(entries.size(), 1u);
    EXPECT_EQ(entries[0].tag.purpose, static_cast<uint8_t>(Purpose::kMetric));
    EXPECT_EQ(entries[0].calls, 1);
    // Weight and bias, two pieces each.
    EXPECT_EQ(entries[0].num_bytes, world.rank() == 0 ? 2 * 3 * (2 * 2 * 16) : 0);
  });
}

}  // namespace
}  // namespace weft

#include "parallel/scheduler/replica_sum.h"

#include <string>

#include "gtest/gtest.h"
#include "mesh/device_mesh.h"

namespace weft {
namespace {

struct Case {
  std::string gradient, at_rest, between;
};

TEST(ReplicaSumTest, ScattersFirstAndSumsReplicasThen) {
  const DeviceMesh mesh = DeviceMesh::Parse("rep=2,shard=2,tp=2");
  for (const Case& c : {
           Case{"[-, -] P{rep,shard}", "[shard, -]", "[shard, -] P{rep}"},
           Case{"[-, -] P{rep:avg,shard}", "[shard, -]", "[shard, -] P{rep:avg}"},
           Case{"[-, tp] P{rep,shard}", "[-, tp.shard]", "[-, tp.shard] P{rep}"},
           // One way: nothing is scattered, or no replica is left.
           Case{"[-, -] P{rep,shard}", "[-, -]", "[-, -]"},
           Case{"[-, -] P{rep,shard}", "[rep.shard, -]", "[rep.shard, -]"},
           Case{"[-, -] P{shard}", "[shard, -]", "[shard, -]"},
           Case{"[shard, -] P{rep}", "[shard, -]", "[shard, -]"},
           Case{"[-, -]", "[shard, -]", "[shard, -]"},
       }) {
    const Layout between = BeforeReplicaSum(Layout::Parse(c.gradient, mesh), Layout::Parse(c.at_rest, mesh));
    EXPECT_EQ(between, Layout::Parse(c.between, mesh))
        << c.gradient << " to " << c.at_rest << " by way of " << between.ToString(mesh);
  }
}

}  // namespace
}  // namespace weft

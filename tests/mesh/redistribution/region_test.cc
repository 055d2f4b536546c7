#include "mesh/redistribution/region.h"

#include <map>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "mesh/shard_math.h"
#include "tests/mesh/all_layouts.h"

namespace weft {
namespace {

TEST(RegionTest, Intersect) {
  const Region a = {{0, 2}, {3, 4}};
  EXPECT_EQ(Intersect(a, {{1, 0}, {5, 3}}), (Region{{1, 2}, {2, 1}}));
  EXPECT_EQ(Intersect(a, a), a);
  EXPECT_TRUE(Intersect(a, {{3, 2}, {1, 1}}).empty());
  EXPECT_TRUE(Intersect(a, {{1, 3}, {0, 2}}).empty());
  EXPECT_EQ(Intersect(Region(), Region()), Region());  // scalars: one element
  EXPECT_FALSE(Region().empty());
}

TEST(RegionTest, LieInOrder) {
  const Shape whole = {4, 3};
  EXPECT_TRUE(LieInOrder(whole, {Region{{0, 0}, {4, 3}}}));
  EXPECT_TRUE(LieInOrder(whole, {Region{{0, 0}, {2, 3}}, Region{{2, 0}, {1, 3}}, Region{{3, 0}, {1, 3}}}));
  EXPECT_TRUE(LieInOrder(whole, {Region{{0, 0}, {4, 3}}, Region{{4, 0}, {0, 3}}}));
  EXPECT_FALSE(LieInOrder(whole, {Region{{2, 0}, {2, 3}}, Region{{0, 0}, {2, 3}}}));
  EXPECT_FALSE(LieInOrder(whole, {Region{{0, 0}, {4, 1}}, Region{{0, 1}, {4, 2}}}));
  EXPECT_FALSE(LieInOrder(whole, {Region{{0, 0}, {2, 3}}}));
  EXPECT_TRUE(LieInOrder({1, 4}, {Region{{0, 0}, {1, 3}}, Region{{0, 3}, {1, 1}}}));
  EXPECT_TRUE(LieInOrder({0, 4}, {}));
}

// Whatever the layouts: everybody gets exactly what it lacks, once, from somebody who has it, and what one
// side sends the other expects.
TEST(RegionTest, ExchangesMatchAndCover) {
  std::mt19937 draw(5);
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=3,c=2");
  const std::vector<Layout> layouts = AllLayouts(2, 3, {});
  const int num_members = static_cast<int>(mesh.num_ranks());
  for (int round = 0; round < 500; ++round) {
    const Shape shape = {static_cast<int64_t>(draw() % 13), static_cast<int64_t>(1 + draw() % 7)};
    const Layout& from = layouts[draw() % layouts.size()];
    const Layout& to = layouts[draw() % layouts.size()];
    std::vector<Region> held, wanted;
    for (int rank : mesh.ranks()) {
      const ShardBox before = LocalBox(shape, from, mesh, mesh.CoordinateOf(rank));
      const ShardBox after = LocalBox(shape, to, mesh, mesh.CoordinateOf(rank));
      held.push_back({before.offset, before.shape});
      wanted.push_back({after.offset, after.shape});
    }
    std::map<std::pair<int, int>, Region> sent, received;
    for (int member = 0; member < num_members; ++member) {
      const RegionExchange exchange = PlanRegionExchange(held, wanted, member);
      std::vector<int> covered(shape.num_elements());
      const auto cover = [&](const Region& region) {
        for (int64_t i = 0; i < region.shape[0]; ++i) {
          for (int64_t j = 0; j < region.shape[1]; ++j) {
            ++covered[(region.offset[0] + i) * shape[1] + region.offset[1] + j];
          }
        }
      };
      if (!exchange.kept.empty()) cover(exchange.kept);
      for (const RegionMessage& send : exchange.sends) {
        ASSERT_NE(send.peer, member);
        ASSERT_TRUE(sent.emplace(std::pair(member, send.peer), send.region).second);
        ASSERT_EQ(Intersect(held[member], send.region), send.region);
      }
      for (const RegionMessage& receive : exchange.receives) {
        ASSERT_TRUE(received.emplace(std::pair(receive.peer, member), receive.region).second);
        cover(receive.region);
      }
      for (int64_t i = 0; i < shape[0]; ++i) {
        for (int64_t j = 0; j < shape[1]; ++j) {
          const bool is_wanted = !Intersect(wanted[member], {{i, j}, {1, 1}}).empty();
          ASSERT_EQ(covered[i * shape[1] + j], is_wanted ? 1 : 0) << from << " to " << to << " of " << shape;
        }
      }
    }
    ASSERT_EQ(sent, received);
  }
}

TEST(RegionTest, ReplicasTakeTurns) {
  // Two hold the left half, one the right; three others want all of it.
  const Region left = {{0}, {4}}, right = {{4}, {4}}, all = {{0}, {8}}, none = {{0}, {0}};
  const std::vector<Region> held = {left, left, right, none, none, none};
  const std::vector<Region> wanted = {none, none, none, all, all, all};
  EXPECT_EQ(PlanRegionExchange(held, wanted, 0).sends, (std::vector<RegionMessage>{{3, left}, {5, left}}));
  EXPECT_EQ(PlanRegionExchange(held, wanted, 1).sends, (std::vector<RegionMessage>{{4, left}}));
  EXPECT_EQ(PlanRegionExchange(held, wanted, 4).receives,
            (std::vector<RegionMessage>{{1, left}, {2, right}}));
}

}  // namespace
}  // namespace weft

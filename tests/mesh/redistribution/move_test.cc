#include "mesh/redistribution/move.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "mesh/redistribution/bytes.h"
#include "mesh/redistribution/region.h"
#include "mesh/shard_math.h"
#include "tests/mesh/all_layouts.h"

namespace weft {
namespace {

Region RegionOf(const Layout& layout, const Shape& shape, const DeviceMesh& mesh, int rank) {
  const ShardBox box = LocalBox(shape, layout, mesh, mesh.CoordinateOf(rank));
  return {box.offset, box.shape};
}

// Rank by rank: the most that one lacks, and what all keep.
struct Count {
  int64_t most_lacked = 0;
  int64_t kept = 0;
};
Count CountByRank(const Layout& from, const Layout& to, const Shape& shape, const DeviceMesh& mesh) {
  Count count;
  for (int rank : mesh.ranks()) {
    const Region after = RegionOf(to, shape, mesh, rank);
    const int64_t kept = Intersect(RegionOf(from, shape, mesh, rank), after).shape.num_elements();
    count.kept += kept;
    count.most_lacked = std::max(count.most_lacked, after.shape.num_elements() - kept);
  }
  return count;
}

TEST(RedistributionMoveTest, CountsAreThoseOfEveryRank) {
  std::mt19937 draw(11);
  for (absl::string_view text :
       {"a=2", "a=5", "a=2,b=3", "a=4,b=4", "a=2,b=2,c=2", "a=3,b=1,c=4", "a=2,b=3,c=2,d=2"}) {
    const DeviceMesh mesh = DeviceMesh::Parse(text);
    const std::vector<Layout> layouts = AllLayouts(2, mesh.num_axes(), {});
    for (int round = 0; round < 4000; ++round) {
      const Shape shape = {static_cast<int64_t>(draw() % 40), static_cast<int64_t>(draw() % 9)};
      const Layout& from = layouts[draw() % layouts.size()];
      const Layout& to = layouts[draw() % layouts.size()];
      const Count expected = CountByRank(from, to, shape, mesh);
      ASSERT_EQ(DescribeMove(from, to, shape, mesh).lacked, expected.most_lacked)
          << shape << " " << from.ToString(mesh) << " to " << to.ToString(mesh) << " on " << text;
      ASSERT_EQ(NumKept(from, to, shape, mesh), expected.kept)
          << shape << " " << from.ToString(mesh) << " to " << to.ToString(mesh) << " on " << text;
    }
  }
}

// Past the number of coordinates that are tried one by one: sizes decide where no dim is cut anew.
TEST(RedistributionMoveTest, UnevenPiecesOfALargeMesh) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=30,b=50");
  for (const Shape& shape : {Shape{1000, 7}, Shape{31, 101}, Shape{1499, 1501}}) {
    for (const auto& [from_text, to_text] :
         std::vector<std::pair<std::string, std::string>>{{"[a.b, -]", "[-, a.b]"},
                                                          {"[a.b, -]", "[a, b]"},
                                                          {"[b, a]", "[-, b]"},
                                                          {"[a.b, -]", "[-, -]"}}) {
      const Layout from = Layout::Parse(from_text, mesh), to = Layout::Parse(to_text, mesh);
      EXPECT_EQ(DescribeMove(from, to, shape, mesh).lacked, CountByRank(from, to, shape, mesh).most_lacked)
          << shape << " " << from_text << " to " << to_text;
    }
  }
}

// Long axes, whose indices are not gone through one by one: even and uneven pieces, dims cut anew by axes of
// very different sizes, axes that change dims.
TEST(RedistributionMoveTest, KeptOnLongAxes) {
  std::mt19937 draw(12);
  for (absl::string_view text : {"a=97", "a=64,b=3", "a=3,b=100", "a=4,b=60,c=2", "a=2,b=3,c=50"}) {
    const DeviceMesh mesh = DeviceMesh::Parse(text);
    const std::vector<Layout> layouts = AllLayouts(2, mesh.num_axes(), {});
    for (int round = 0; round < 1500; ++round) {
      const Shape shape = {static_cast<int64_t>(draw() % 1200), static_cast<int64_t>(draw() % 300)};
      const Layout& from = layouts[draw() % layouts.size()];
      const Layout& to = layouts[draw() % layouts.size()];
      ASSERT_EQ(NumKept(from, to, shape, mesh), CountByRank(from, to, shape, mesh).kept)
          << shape << " " << from.ToString(mesh) << " to " << to.ToString(mesh) << " on " << text;
    }
  }
}

struct Known {
  std::string from;
  std::string to;
  StepKind kind;
  int64_t messages;
  int64_t lacked;  // of 16 x 16
};

TEST(RedistributionMoveTest, KindsByHand) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=4,b=4");
  for (const Known& known : std::vector<Known>{
           {"[-, -]", "[a, b]", StepKind::kSlice, 0, 0},
           {"[a, -]", "[a.b, -]", StepKind::kSlice, 0, 0},
           {"[a, -]", "[-, -]", StepKind::kAllGather, 3, 192},
           {"[a.b, -]", "[-, -]", StepKind::kAllGather, 15, 240},
           {"[a, b]", "[-, -]", StepKind::kAllGather, 15, 240},
           {"[a, -]", "[-, a]", StepKind::kAllToAll, 3, 48},
           {"[a.b, -]", "[-, a.b]", StepKind::kAllToAll, 15, 15},
           {"[a, b]", "[b, a]", StepKind::kPermute, 1, 16},
           {"[a.b, -]", "[b.a, -]", StepKind::kPermute, 1, 16},
           {"[a, -]", "[b, -]", StepKind::kSendRegions, 1, 64},
           {"[b, -]", "[a.b, -]", StepKind::kSendRegions, 1, 16},
           {"[a.b, -]", "[b, -]", StepKind::kSendRegions, 4, 64},
           {"[a.b, -]", "[-, b]", StepKind::kSendRegions, 15, 60},
       }) {
    const Move move =
        DescribeMove(Layout::Parse(known.from, mesh), Layout::Parse(known.to, mesh), {16, 16}, mesh);
    EXPECT_EQ(move.kind, known.kind) << known.from << " to " << known.to;
    EXPECT_EQ(move.messages, known.messages) << known.from << " to " << known.to;
    EXPECT_EQ(move.lacked, known.lacked) << known.from << " to " << known.to;
  }
}

TEST(RedistributionMoveTest, GroupsSpanWhatMoves) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=2,c=2");
  const auto axes = [&](absl::string_view from, absl::string_view to) {
    return AxesIn(DescribeMove(Layout::Parse(from, mesh), Layout::Parse(to, mesh), {8, 8}, mesh).axes);
  };
  EXPECT_EQ(axes("[a.b, c]", "[a, c]"), (AxisList{1}));
  EXPECT_EQ(axes("[a, c]", "[c, a]"), (AxisList{0, 2}));
  EXPECT_EQ(axes("[b, -]", "[a.b, -]"), (AxisList{0, 1}));  // replicas along a share the sending
  EXPECT_EQ(axes("[b, -]", "[-, a]"), (AxisList{1}));
}

}  // namespace
}  // namespace weft

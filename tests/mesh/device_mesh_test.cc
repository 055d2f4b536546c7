#include "mesh/device_mesh.h"

#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "tests/message_of.h"

namespace weft {
namespace {

TEST(DeviceMeshTest, NoAxesIsOneDevice) {
  const DeviceMesh mesh;
  EXPECT_EQ(mesh.num_axes(), 0);
  EXPECT_EQ(mesh.num_ranks(), 1);
  EXPECT_EQ(mesh.ranks(), std::vector<int>{0});
  EXPECT_TRUE(mesh.CoordinateOf(0).empty());
  EXPECT_EQ(mesh.GroupOf(0, {}), std::vector<int>{0});
  EXPECT_EQ(mesh.ToString(), "");
  EXPECT_EQ(mesh, DeviceMesh::Parse("  "));
}

TEST(DeviceMeshTest, FirstAxisVariesSlowest) {
  const DeviceMesh mesh({{"dp", 2}, {"pp", 1}, {"tp", 3}});
  EXPECT_EQ(mesh.num_ranks(), 6);
  int rank = 0;
  for (int64_t dp = 0; dp < 2; ++dp) {
    for (int64_t tp = 0; tp < 3; ++tp, ++rank) {
      EXPECT_EQ(mesh.ranks()[rank], rank);
      EXPECT_EQ(mesh.CoordinateOf(rank), (std::vector<int64_t>{dp, 0, tp}));
    }
  }
  EXPECT_TRUE(mesh.Contains(5));
  EXPECT_FALSE(mesh.Contains(6));
  EXPECT_FALSE(mesh.Contains(-1));
  EXPECT_EQ(InvalidArgumentMessage([&] { mesh.CoordinateOf(6); }),
            "rank 6 is not in mesh (dp=2, pp=1, tp=3) of 6 ranks");
}

TEST(DeviceMeshTest, GivenRanks) {
  const DeviceMesh mesh({{"dp", 2}, {"tp", 2}}, {7, 3, 0, 9});
  EXPECT_EQ(mesh.CoordinateOf(3), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(mesh.CoordinateOf(0), (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(mesh.GroupOf(9, {0}), (std::vector<int>{3, 9}));
  EXPECT_EQ(mesh.GroupOf(9, {1}), (std::vector<int>{0, 9}));
  EXPECT_TRUE(mesh.Contains(9));
  EXPECT_FALSE(mesh.Contains(1));
  EXPECT_EQ(InvalidArgumentMessage([&] { mesh.CoordinateOf(1); }),
            "rank 1 is not in mesh (dp=2, tp=2) of 4 ranks");
}

TEST(DeviceMeshTest, GroupsFollowTheOrderOfTheirAxes) {
  const DeviceMesh mesh({{"a", 2}, {"b", 2}, {"c", 3}});
  EXPECT_EQ(mesh.GroupOf(7, {}), std::vector<int>{7});
  EXPECT_EQ(mesh.GroupOf(7, {2}), (std::vector<int>{6, 7, 8}));
  EXPECT_EQ(mesh.GroupOf(7, {0, 2}), (std::vector<int>{0, 1, 2, 6, 7, 8}));
  EXPECT_EQ(mesh.GroupOf(7, {2, 0}), (std::vector<int>{0, 6, 1, 7, 2, 8}));
  EXPECT_EQ(InvalidArgumentMessage([&] { mesh.GroupOf(0, {1, 1}); }), "axis 'b' is listed twice in a group");
  EXPECT_EQ(InvalidArgumentMessage([&] { mesh.GroupOf(0, {3}); }),
            "axis 3 is not one of the 3 axes of mesh (a=2, b=2, c=3)");
}

// Groups over any axes partition the ranks; every member sees the same group, and differs along those axes
// alone.
TEST(DeviceMeshTest, GroupsPartition) {
  const DeviceMesh mesh({{"a", 2}, {"b", 1}, {"c", 3}, {"d", 2}}, {11, 0, 4, 2, 8, 6, 1, 3, 5, 7, 9, 10});
  for (int subset = 0; subset < 16; ++subset) {
    std::vector<int> axes;
    size_t group_size = 1;
    for (int axis = 3; axis >= 0; --axis) {
      if ((subset >> axis & 1) == 0) continue;
      axes.push_back(axis);
      group_size *= mesh.axis_size(axis);
    }
    std::set<std::vector<int>> groups;
    for (int rank : mesh.ranks()) {
      const std::vector<int> group = mesh.GroupOf(rank, axes);
      EXPECT_EQ(group.size(), group_size);
      groups.insert(group);
      std::vector<int64_t> last_index;
      for (int member : group) {
        std::vector<int64_t> index;
        for (int axis = 0; axis < 4; ++axis) {
          if ((subset >> axis & 1) == 0) {
            EXPECT_EQ(mesh.CoordinateOf(member)[axis], mesh.CoordinateOf(rank)[axis]);
          }
        }
        for (int axis : axes) index.push_back(mesh.CoordinateOf(member)[axis]);
        if (!last_index.empty()) {
          EXPECT_LT(last_index, index);
        }
        last_index = index;
      }
    }
    EXPECT_EQ(groups.size() * group_size, 12u);
  }
}

// Nothing is made for each rank until the list is asked for: a hundred thousand meshes of a
// million ranks would take 400 GB.
TEST(DeviceMeshTest, AMillionRanksCostNothing) {
  std::vector<DeviceMesh> meshes;
  for (int i = 0; i < 100000; ++i) meshes.push_back(DeviceMesh({{"dp", 1 << 18}, {"tp", 4}}));
  const DeviceMesh& mesh = meshes[7];
  EXPECT_EQ(mesh, meshes[8]);
  EXPECT_EQ(mesh.num_ranks(), 1 << 20);
  EXPECT_EQ(mesh.CoordinateOf((1 << 20) - 1), (std::vector<int64_t>{(1 << 18) - 1, 3}));
  EXPECT_EQ(mesh.GroupOf(4001, {1}), (std::vector<int>{4000, 4001, 4002, 4003}));
  EXPECT_TRUE(mesh.Contains((1 << 20) - 1));
  EXPECT_FALSE(mesh.Contains(1 << 20));
  EXPECT_EQ(mesh.ranks().size(), size_t{1} << 20);
  EXPECT_EQ(mesh.ranks().back(), (1 << 20) - 1);
}

// Ranks that are given and the same as those that are counted are the same mesh.
TEST(DeviceMeshTest, GivenInOrder) {
  const DeviceMesh given({{"a", 2}, {"b", 2}}, {0, 1, 2, 3});
  EXPECT_EQ(given, DeviceMesh({{"a", 2}, {"b", 2}}));
  EXPECT_EQ(given.ranks(), (std::vector<int>{0, 1, 2, 3}));
}

TEST(DeviceMeshTest, TextAndComparison) {
  const DeviceMesh mesh = DeviceMesh::Parse(" dp = 2 ,tp=4");
  EXPECT_EQ(mesh.ToString(), "dp=2, tp=4");
  EXPECT_EQ(mesh, DeviceMesh({{"dp", 2}, {"tp", 4}}));
  EXPECT_EQ(mesh, DeviceMesh::Parse(mesh.ToString()));
  EXPECT_EQ(mesh, DeviceMesh(mesh));
  EXPECT_FALSE(mesh == DeviceMesh::Parse("tp=4,dp=2"));
  EXPECT_FALSE(mesh == DeviceMesh::Parse("dp=2,tp=2"));
  EXPECT_FALSE(mesh == DeviceMesh({{"dp", 2}, {"tp", 4}}, {1, 0, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(mesh.FindAxis("tp"), 1);
  EXPECT_EQ(mesh.FindAxis("pp"), -1);
  EXPECT_EQ(mesh.AxisIndex("dp"), 0);
  EXPECT_EQ(InvalidArgumentMessage([&] { mesh.AxisIndex("pp"); }), "mesh (dp=2, tp=4) has no axis 'pp'");
}

TEST(DeviceMeshTest, MisuseIsNamed) {
  const auto message = [](absl::string_view text) {
    return InvalidArgumentMessage([&] { DeviceMesh::Parse(text); });
  };
  EXPECT_EQ(message("dp"), "cannot read mesh \"dp\": expected name=size, separated by commas, got 'dp'");
  EXPECT_EQ(message("dp=2,"), "cannot read mesh \"dp=2,\": expected name=size, separated by commas, got ''");
  EXPECT_EQ(message("dp=2x"),
            "cannot read mesh \"dp=2x\": expected name=size, separated by commas, got 'dp=2x'");
  EXPECT_EQ(
      message("2d=2"),
      "cannot read mesh \"2d=2\": mesh axis name '2d' is not a letter followed by letters, digits or '_'");
  EXPECT_EQ(
      message("d-p=2"),
      "cannot read mesh \"d-p=2\": mesh axis name 'd-p' is not a letter followed by letters, digits or '_'");
  EXPECT_EQ(message("=2"),
            "cannot read mesh \"=2\": mesh axis name '' is not a letter followed by letters, digits or '_'");
  EXPECT_EQ(message("a=2,a=2"), "cannot read mesh \"a=2,a=2\": mesh axis 'a' is named twice in a=2, a=2");
  EXPECT_EQ(message("a=0"), "cannot read mesh \"a=0\": mesh axis 'a' needs a size of at least 1, got 0");
  EXPECT_EQ(message("a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=1"),
            "cannot read mesh \"a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=1\": a mesh has at most 8 axes, got 9: "
            "a=1, b=1, c=1, d=1, e=1, f=1, g=1, h=1, i=1");
  EXPECT_EQ(
      message("a=65536,b=65536"),
      "cannot read mesh \"a=65536,b=65536\": mesh a=65536, b=65536 has more ranks than an int can number");
  EXPECT_EQ(InvalidArgumentMessage([] {
              DeviceMesh({{"a", 2}}, {0, 1, 2});
            }),
            "mesh a=2 has 2 ranks, but 3 were given");
  EXPECT_EQ(InvalidArgumentMessage([] {
              DeviceMesh({{"a", 2}}, {4, 4});
            }),
            "rank 4 stands twice in mesh a=2");
  EXPECT_EQ(InvalidArgumentMessage([] { DeviceMesh({{"a", 2}}, {0, -1}); }), "rank -1 in a mesh is negative");
}

// A slice is what its root has at the fixed indices: the same ranks, coordinates and groups, by the same numbers.
TEST(MeshAlgebraTest, ASliceIsWhatItsRootHasThere) {
  std::vector<int> backwards(12);
  for (int i = 0; i < 12; ++i) backwards[i] = 20 - i;
  for (const DeviceMesh& mesh :
       {DeviceMesh::Parse("pp=2, dp=3, tp=2"), DeviceMesh({{"pp", 2}, {"dp", 3}, {"tp", 2}}, backwards)}) {
    for (int64_t dp = 0; dp < 3; ++dp) {
      const DeviceMesh slice = mesh.Slice({{"dp", dp}});
      EXPECT_TRUE(slice.IsSlice());
      EXPECT_FALSE(mesh.IsSlice());
      EXPECT_EQ(slice.Root(), mesh);
      EXPECT_EQ(slice.num_axes(), 3);
      EXPECT_EQ(slice.num_ranks(), 4);
      EXPECT_EQ(slice.axis_size(1), 1);
      EXPECT_TRUE(slice.IsFixed(1));
      EXPECT_FALSE(slice.IsFixed(0));
      EXPECT_EQ(slice.fixed_index(1), dp);
      std::vector<int> there;
      for (const int rank : mesh.ranks()) {
        const std::vector<int64_t> whole = mesh.CoordinateOf(rank);
        EXPECT_EQ(slice.Contains(rank), whole[1] == dp);
        if (whole[1] != dp) continue;
        there.push_back(rank);
        EXPECT_EQ(slice.CoordinateOf(rank), (std::vector<int64_t>{whole[0], 0, whole[2]}));
        EXPECT_EQ(slice.GroupOf(rank, {0, 2}), mesh.GroupOf(rank, {0, 2}));
        EXPECT_EQ(slice.GroupOf(rank, {2}), mesh.GroupOf(rank, {2}));
        EXPECT_EQ(slice.GroupOf(rank, {1}), std::vector<int>{rank});
      }
      EXPECT_EQ(slice.ranks(), there);
      // A slice of a slice is one of the root.
      const DeviceMesh line = slice.Slice({{"pp", 1}});
      EXPECT_EQ(line, mesh.Slice({{"pp", 1}, {"dp", dp}}));
      EXPECT_EQ(line.Root(), mesh);
      EXPECT_EQ(line.num_ranks(), 2);
      const DeviceMesh point = line.Slice({{"tp", 0}});
      EXPECT_EQ(point.ranks(), std::vector<int>{mesh.ranks()[6 + 2 * dp]});
    }
  }
  const DeviceMesh mesh = DeviceMesh::Parse("pp=2, dp=3");
  EXPECT_EQ(mesh.Slice({{"pp", 1}}).ToString(), "dp=3 at pp=1");
  EXPECT_EQ(mesh.Slice({{"pp", 1}, {"dp", 0}}).ToString(), "at pp=1, dp=0");
  EXPECT_EQ(mesh.Slice({}), mesh);
  EXPECT_FALSE(mesh.Slice({}).IsSlice());
  EXPECT_NE(mesh.Slice({{"pp", 1}}), mesh.Slice({{"pp", 0}}));
  EXPECT_NE(mesh.Slice({{"pp", 0}}), mesh);
  // The same ranks under other axes are another mesh.
  EXPECT_NE(mesh.Slice({{"pp", 0}}), DeviceMesh::Parse("pp=1, dp=3"));
  EXPECT_NE(mesh.Slice({{"pp", 0}}), DeviceMesh::Parse("pp=4, dp=3").Slice({{"pp", 0}}));
}

TEST(MeshAlgebraTest, ASliceOfAMillionRanksMakesNoList) {
  const DeviceMesh mesh({{"pp", 1 << 20}, {"dp", 4}});
  const DeviceMesh slice = mesh.Slice({{"pp", 12345}});
  EXPECT_EQ(slice.num_ranks(), 4);
  EXPECT_EQ(slice.CoordinateOf(4 * 12345 + 3), (std::vector<int64_t>{0, 3}));
  EXPECT_FALSE(slice.Contains(3));
  EXPECT_EQ(slice.ranks(), (std::vector<int>{49380, 49381, 49382, 49383}));
}

TEST(MeshAlgebraTest, AnAliasStandsForAnOrderedListOfAxes) {
  const DeviceMesh mesh = DeviceMesh::Parse("pp=2, dp=2, tp=2").Flatten({"tp", "dp"}, "data");
  EXPECT_EQ(mesh.AxesOf("data"), (std::vector<int>{2, 1}));
  EXPECT_EQ(mesh.AxesOf("pp"), std::vector<int>{0});
  EXPECT_EQ(mesh.num_axes(), 3);
  EXPECT_EQ(mesh, DeviceMesh::Parse("pp=2, dp=2, tp=2"));
  EXPECT_EQ(mesh.ToString(), "pp=2, dp=2, tp=2");
  EXPECT_EQ(mesh.FindAxis("data"), -1);
  EXPECT_EQ(mesh.Flatten({"pp", "data"}, "all").AxesOf("all"), (std::vector<int>{0, 2, 1}));
  EXPECT_EQ(mesh.Flatten({"tp", "dp"}, "data").AxesOf("data"), (std::vector<int>{2, 1}));  // said twice
  EXPECT_EQ(mesh.Slice({{"pp", 1}}).AxesOf("data"), (std::vector<int>{2, 1}));
  EXPECT_EQ(InvalidArgumentMessage([&] { mesh.AxisIndex("data"); }),
            "mesh (pp=2, dp=2, tp=2): 'data' is an alias of tp, dp; expected one axis");
  EXPECT_EQ(
      InvalidArgumentMessage([&] {
        mesh.Slice({{"tp", 1}}).AxesOf("data");
      }),
      "mesh (pp=2, dp=2 at tp=1) has no axis 'data': 'tp' is fixed in this slice of mesh (pp=2, dp=2, tp=2)");
}

TEST(MeshAlgebraTest, AnAxisIsSplitIntoAGrid) {
  const DeviceMesh mesh = DeviceMesh::Parse("pp=2, dp=6, tp=2").Flatten({"dp", "tp"}, "data");
  const DeviceMesh split = mesh.Split("dp", {{"rep", 2}, {"fs", 3}});
  EXPECT_EQ(split, DeviceMesh::Parse("pp=2, rep=2, fs=3, tp=2"));
  EXPECT_EQ(split.AxesOf("dp"), (std::vector<int>{1, 2}));
  EXPECT_EQ(split.AxesOf("data"), (std::vector<int>{1, 2, 3}));
  for (const int rank : mesh.ranks()) {
    EXPECT_EQ(split.GroupOf(rank, split.AxesOf("dp")), mesh.GroupOf(rank, {1}));
    const std::vector<int64_t> whole = mesh.CoordinateOf(rank);
    EXPECT_EQ(split.CoordinateOf(rank),
              (std::vector<int64_t>{whole[0], whole[1] / 3, whole[1] % 3, whole[2]}));
  }
  // By an alias: both names stand for the factors.
  const DeviceMesh aliased =
      DeviceMesh::Parse("dp=4").Flatten({"dp"}, "data").Split("data", {{"rep", 2}, {"fs", 2}});
  EXPECT_EQ(aliased, DeviceMesh::Parse("rep=2, fs=2"));
  EXPECT_EQ(aliased.AxesOf("dp"), (std::vector<int>{0, 1}));
  EXPECT_EQ(aliased.AxesOf("data"), (std::vector<int>{0, 1}));
  const DeviceMesh odd = DeviceMesh({{"dp", 4}}, {7, 3, 1, 5}).Split("dp", {{"a", 2}, {"b", 2}});
  EXPECT_EQ(odd, DeviceMesh({{"a", 2}, {"b", 2}}, {7, 3, 1, 5}));
}

TEST(MeshAlgebraTest, Misuse) {
  const DeviceMesh mesh = DeviceMesh::Parse("pp=2, dp=4");
  const DeviceMesh slice = mesh.Slice({{"pp", 1}});
  EXPECT_EQ(InvalidArgumentMessage([&] { mesh.Slice({{"tp", 0}}); }), "mesh (pp=2, dp=4) has no axis 'tp'");
  EXPECT_EQ(InvalidArgumentMessage([&] {
              mesh.Slice({{"pp", 2}});
            }),
            "a slice of mesh (pp=2, dp=4) at pp=2: expected an index from 0 to 1");
  EXPECT_EQ(InvalidArgumentMessage([&] {
              mesh.Slice({{"pp", 1}, {"pp", 1}});
            }),
            "a slice of mesh (pp=2, dp=4) fixes axis 'pp' twice");
  const std::string is_fixed =
      "mesh (dp=4 at pp=1) has no axis 'pp': 'pp' is fixed in this slice of mesh (pp=2, dp=4)";
  EXPECT_EQ(InvalidArgumentMessage([&] { slice.Slice({{"pp", 1}}); }), is_fixed);
  EXPECT_EQ(InvalidArgumentMessage([&] { slice.AxisIndex("pp"); }), is_fixed);
  EXPECT_EQ(slice.FindAxis("pp"), -1);
  EXPECT_EQ(InvalidArgumentMessage([&] { slice.CoordinateOf(0); }),
            "rank 0 is not in mesh (dp=4 at pp=1) of 4 ranks");

  const auto flatten = [&](const std::vector<std::string>& axes, const char* alias) {
    return InvalidArgumentMessage([&] { mesh.Flatten({"pp"}, "used").Flatten(axes, alias); });
  };
  EXPECT_EQ(flatten({"pp", "dp", "pp"}, "x"),
            "alias 'x' of axes pp, dp, pp of mesh (pp=2, dp=4): axis 'pp' is listed twice");
  EXPECT_EQ(flatten({}, "x"), "alias 'x' of axes  of mesh (pp=2, dp=4): it needs at least one axis");
  EXPECT_EQ(flatten({"pp"}, "dp"), "alias 'dp' of axes pp of mesh (pp=2, dp=4): an axis has that name");
  EXPECT_EQ(flatten({"dp"}, "used"),
            "alias 'used' of axes dp of mesh (pp=2, dp=4): it stands for other axes already");
  EXPECT_EQ(flatten({"dp"}, "a b"),
            "alias 'a b' of axes dp of mesh (pp=2, dp=4): its name is not a letter followed by letters, "
            "digits or '_'");

  const auto split = [&](const std::vector<MeshAxis>& factors) {
    return InvalidArgumentMessage([&] { mesh.Split("dp", factors); });
  };
  EXPECT_EQ(split({{"a", 2}, {"b", 3}}),
            "axis 'dp' of mesh (pp=2, dp=4) split into a=2, b=3: the factors' sizes must be at least 1 and "
            "multiply to 4");
  EXPECT_EQ(split({{"a", 2}}),
            "axis 'dp' of mesh (pp=2, dp=4) split into a=2: the factors' sizes multiply to 2, expected 4");
  EXPECT_EQ(split({{"dp", 2}, {"b", 2}}),
            "axis 'dp' of mesh (pp=2, dp=4) split into dp=2, b=2: the name 'dp' is taken");
  EXPECT_EQ(InvalidArgumentMessage([&] {
              mesh.Flatten({"dp"}, "data").Split("data", {{"dp", 2}, {"b", 2}});
            }),
            "axis 'data' of mesh (pp=2, dp=4) split into dp=2, b=2: the name 'dp' is taken");
  EXPECT_EQ(split({{"pp", 2}, {"b", 2}}), "mesh axis 'pp' is named twice in pp=2, pp=2, b=2");
  EXPECT_EQ(split({}), "axis 'dp' of mesh (pp=2, dp=4) split into : it needs at least one factor");
  EXPECT_EQ(
      InvalidArgumentMessage([&] {
        slice.Split("dp", {{"a", 2}, {"b", 2}});
      }),
      "axis 'dp' of mesh (dp=4 at pp=1) split into a=2, b=2: a slice has the axes of its root (pp=2, dp=4); "
      "split that, then slice it");
}

}  // namespace
}  // namespace weft

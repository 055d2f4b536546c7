// What On entries of a plan mean, and what of them is refused.

#include <string>

#include "dtensor/nn/linear.h"
#include "dtensor/nn/norm.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/resolved_plan.h"
#include "runtime/base/error.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"

namespace weft {
namespace {

class Net : public Module {
 public:
  Net(Module* parent, std::string name) : Module(parent, std::move(name)) {}
  Linear up{this, "up", 4, 8}, down{this, "down", 8, 4};
};

class Model : public Module {
 public:
  Net camera{this, "camera"}, lidar{this, "lidar"};
  Linear head{this, "head", 4, 2};
};

const DeviceMesh kMesh = DeviceMesh::Parse("gpus=4");

std::string ErrorOf(const Plan& plan, const DeviceMesh& mesh = kMesh) {
  Model model;
  return MessageOf([&] { ResolvePlan(model, mesh, plan); });
}

TEST(PartsPlanTest, PartsAndTheirMeshes) {
  Model model;
  const DeviceMesh mesh = DeviceMesh::Parse("rep=2, gpus=5");
  const Plan plan = {
      {"camera", On("gpus", 0, 4, "dp=2, tp=2")},
      {"camera.up", ColumnParallel("tp")},
      {"camera.down", RowParallel("tp")},
      {"camera", FullyShard("dp")},
      {"lidar", On("gpus", 4, 1)},
      {"head", On("gpus", 4, 1)},
      {"", DataParallel("rep")},
  };
  const ResolvedPlan resolved = ResolvePlan(model, mesh, plan);
  ASSERT_TRUE(resolved.parts.has_value());
  ASSERT_EQ(resolved.parts->parts.size(), 2);
  EXPECT_EQ(resolved.parts->parts[0].mesh,
            DeviceMesh({{"rep", 2}, {"dp", 2}, {"tp", 2}}, {0, 1, 2, 3, 5, 6, 7, 8}));
  EXPECT_EQ(resolved.parts->parts[1].mesh, DeviceMesh({{"rep", 2}, {"gpus", 1}}, {4, 9}));
  // Modules: the root, camera and its two, lidar and its two, head.
  const std::vector<int> parts = {-1, 0, 0, 0, 1, 1, 1, 1};
  const auto kWhole = ModulePlace::kWhole, kPart = ModulePlace::kPart, kAround = ModulePlace::kAround;
  const std::vector<ModulePlace> places = {kWhole, kPart, kAround, kAround, kPart, kAround, kAround, kPart};
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(resolved.modules[i].part, parts[i]) << resolved.modules[i].path;
    EXPECT_EQ(resolved.modules[i].place, places[i]) << resolved.modules[i].path;
  }
  // The root's DataParallel means each part: its rows are split over "rep" as they enter it.
  const std::vector<BorderPin> pins = {{1, Shard(0), std::nullopt}, {0, Shard(0), std::nullopt}};
  EXPECT_EQ(resolved.modules[1].border.input, pins);
  EXPECT_TRUE(resolved.modules[0].border.input.empty());
  // In the axes of each part's mesh.
  const std::string table = resolved.ToTable(model, mesh);
  EXPECT_THAT(table,
              testing::HasSubstr(
                  "camera.up.weight    ColumnParallel(tp) + FullyShard(dp) + DataParallel(rep)  [4, 8]  [dp, "
                  "tp]  [-, tp]     [dp, tp]  [dp, tp]  8                  gpus 0 to 3\n"));
  EXPECT_THAT(table, testing::HasSubstr("head.bias           DataParallel(rep)  "));
  EXPECT_THAT(table, testing::HasSubstr("  2                  gpus 4\n"));
}

TEST(PartsPlanTest, TextAndJson) {
  const Plan plan = {{"camera", On("gpus", 0, 4, "dp=2, tp=2")}, {"lidar", On("gpus", 4, 2)}};
  EXPECT_EQ(plan.entries()[0].style.ToString(), "On(gpus, first=0, count=4, mesh=dp=2, tp=2)");
  EXPECT_EQ(plan.entries()[1].style.ToString(), "On(gpus, first=4, count=2)");
  EXPECT_EQ(Plan::FromJson(plan.ToJson()), plan);
  EXPECT_EQ(Plan::FromJson(R"({"entries": [{"path": "camera", "style": "On", "axis": "gpus", "first": 0,
                               "count": 4, "mesh": "dp=2, tp=2"}, {"path": "lidar", "style": "On",
                               "axis": "gpus", "first": 4, "count": 2}]})"),
            plan);
  EXPECT_EQ(OnRangeOf(plan.entries()[1].style).axes, (std::vector<MeshAxis>{{"gpus", 2}}));
}

TEST(PartsPlanTest, BadRanges) {
  const PlanEntry camera = {"camera", On("gpus", 0, 2)}, lidar = {"lidar", On("gpus", 2, 1)},
                  head = {"head", On("gpus", 3, 1)};
  EXPECT_EQ(ErrorOf({camera, lidar, head}), "no error");
  EXPECT_EQ(ErrorOf({camera, lidar, {"head", On("gpus", 1, 3)}}),
            "plan entry \"head\": On(gpus, first=1, count=3): gpus 1 to 3 with mesh (gpus=3) overlaps gpus 0 "
            "to 1 with "
            "mesh (gpus=2) of another entry: expected parts that are disjoint, or equal with the same mesh");
  EXPECT_EQ(
      ErrorOf({camera, lidar, head, {"camera.up", On("gpus", 0, 2, "dp=2")}}),
      "plan entry \"camera.up\": On(gpus, first=0, count=2, mesh=dp=2): gpus 0 to 1 with mesh (dp=2) "
      "overlaps "
      "gpus 0 to 1 with mesh (gpus=2) of another entry: expected parts that are disjoint, or equal with the "
      "same mesh");
  EXPECT_EQ(
      ErrorOf({camera, lidar, {"head", On("gpus", 3, 2)}}),
      "plan entry \"head\": On(gpus, first=3, count=2): axis 'gpus' has indices 0 to 3, got gpus 3 to 4");
  EXPECT_EQ(ErrorOf({camera, lidar, {"head", On("cpus", 3, 1)}}),
            "plan entry \"head\": On(cpus, first=3, count=1): the mesh (gpus=4) has no axis 'cpus'");
  EXPECT_EQ(ErrorOf({camera, lidar, {"head", On("gpus", 2, 1)}}),
            "the plan's On entries leave out gpus 3, which would have nothing to do: expected parts that "
            "have all of "
            "gpus 0 to 3");
  EXPECT_EQ(ErrorOf({camera, lidar, {"head", On("gpus", 3, 1, "a=2")}}),
            "plan entry \"head\": On(gpus, first=3, count=1, mesh=a=2): On: mesh (a=2) has 2 ranks, expected "
            "count, 1");
  EXPECT_EQ(ErrorOf({camera, {"lidar", {.name = "On", .axis = "gpus"}}}),
            "plan entry \"lidar\": On(gpus): On: expected fields first and count, got On(gpus)");
  EXPECT_EQ(ErrorOf({camera, {"lidar", On("rep", 0, 1)}}, DeviceMesh::Parse("gpus=2, rep=1")),
            "plan entry \"lidar\": On(rep, first=0, count=1): another entry places modules along axis "
            "'gpus': expected all of them along one axis, got 'rep'");
}

TEST(PartsPlanTest, BadModules) {
  const PlanEntry camera = {"camera", On("gpus", 0, 2)}, lidar = {"lidar", On("gpus", 2, 1)},
                  head = {"head", On("gpus", 3, 1)};
  EXPECT_EQ(ErrorOf({camera, lidar, {"camera.up", On("gpus", 3, 1)}}),
            "module 'camera.up' is placed on gpus 3 and lies within one on gpus 0 to 1, which other ranks do "
            "not run");
  EXPECT_EQ(ErrorOf({camera, lidar, head, {"camera", On("gpus", 3, 1)}}),
            "plan entry \"camera\": On(gpus, first=3, count=1): module 'camera' is placed on gpus 0 onward "
            "by another "
            "entry: expected one place, got gpus 3 onward");
  EXPECT_EQ(
      ErrorOf({camera, {"lidar", On("gpus", 2, 2)}}),
      "parameter 'head.weight' is in no part: with On, every module with parameters is placed by an entry");
  EXPECT_EQ(ErrorOf({{"", On("gpus", 0, 4)}}),
            "plan entry \"\": On(gpus, first=0, count=4): the model itself lies on the whole mesh: "
            "expected modules below it, got the path \"\"");
  EXPECT_EQ(
      ErrorOf({camera, lidar, head, {"head.weight", On("gpus", 3, 1)}}),
      "plan entry \"head.weight\": On(gpus, first=3, count=1): this style is for modules; the path names a "
      "parameter, 'head.weight'");
  EXPECT_EQ(ErrorOf({camera, lidar, head, {"head", Pipeline("gpus")}}),
            "plan entry \"head\": Pipeline(gpus): the plan has On entries, too: a model is cut into stages "
            "or lies on "
            "parts, not both");
}

TEST(PartsPlanTest, AxesThatAPartLacks) {
  const PlanEntry camera = {"camera", On("gpus", 0, 2, "tp=2")}, lidar = {"lidar", On("gpus", 2, 1)},
                  head = {"head", On("gpus", 3, 1)};
  EXPECT_EQ(ErrorOf({camera, lidar, head, {"lidar.up", ColumnParallel("tp")}}),
            "plan entry \"lidar.up\": ColumnParallel(tp): the mesh (gpus=1) has no axis 'tp'");
  EXPECT_EQ(ErrorOf({camera, lidar, head, {"camera.up", ColumnParallel("gpus")}}),
            "plan entry \"camera.up\": ColumnParallel(gpus): the mesh (tp=2) has no axis 'gpus'");
  EXPECT_EQ(ErrorOf({camera, lidar, head, {"", FullyShard("dp")}}),
            "plan entry \"\": FullyShard(dp): no part of the model below '' has an axis 'dp'");
  EXPECT_EQ(ErrorOf({camera, lidar, head, {"*", FullyShard("tp")}}),
            "plan entry \"*\": FullyShard(tp): the mesh (gpus=1) has no axis 'tp'");
  EXPECT_EQ(ErrorOf({camera, lidar, head, {"", FullyShard("tp")}}), "no error");
}

// Between the model and two of its parts lies a module that is in none.
class Fused : public Module {
 public:
  class Encoders : public Module {
   public:
    explicit Encoders(Module* parent) : Module(parent, "encoders") {}
    Net camera{this, "camera"}, lidar{this, "lidar"};
  };
  Encoders encoders{this};
  Linear fusion{this, "fusion", 4, 2};
};

TEST(PartsPlanTest, AnInnerEntryTakesPartsFromAnOuterOne) {
  const Plan parts = {
      {"encoders.camera", On("g", 0, 2)}, {"encoders.lidar", On("g", 2, 2)}, {"fusion", On("g", 2, 2)}};
  const auto resolved = [&](const Plan& plan) {
    Fused model;
    return ResolvePlan(model, DeviceMesh::Parse("g=4"), parts.Merge(plan));
  };
  const auto check = [&](const Style& inner, const Style& outer) {
    const ResolvedPlan expected = resolved({{"encoders.*", inner}, {"fusion", outer}});
    EXPECT_TRUE(resolved({{"encoders", inner}, {"", outer}}) == expected) << outer;
    EXPECT_TRUE(resolved({{"encoders.*", inner}, {"", outer}}) == expected) << outer;
  };
  check(FullyShard("g"), FullyShard("g"));
  check(DataParallel("g"), DataParallel("g", {.shard_state = true}));
  EXPECT_FALSE(resolved({{"", DataParallel("g")}}) ==
               resolved({{"", DataParallel("g", {.shard_state = true})}}));
}

TEST(PartsPlanTest, TiesBetweenParts) {
  class Tied : public Module {
   public:
    Tied() { b.weight.TieTo(a.weight); }
    Linear a{this, "a", 4, 4}, b{this, "b", 4, 4};
  };
  Tied model;
  EXPECT_EQ(MessageOf([&] {
              ResolvePlan(model, DeviceMesh::Parse("g=2"), {{"a", On("g", 0, 1)}, {"b", On("g", 1, 1)}});
            }),
            "parameter 'b.weight' is tied to 'a.weight', which is on g 0 and it is on g 1: parts share no "
            "parameter");
  ResolvePlan(model, DeviceMesh::Parse("g=1"), {{"a", On("g", 0, 1)}, {"b", On("g", 0, 1)}});
}

TEST(PartsPlanTest, AnotherPlanHasOtherPartsOrNone) {
  RunRanks(4, [](World& world) {
    Model model;
    const Plan plan = {{"camera", On("gpus", 0, 2)}, {"lidar", On("gpus", 2, 1)}, {"head", On("gpus", 3, 1)}};
    const auto context = Parallelize(model, world, kMesh, plan);
    EXPECT_THROW(Parallelize(model, context, plan.Merge({{"nowhere", FullyShard("gpus")}})), Error);
    ASSERT_NE(model.parts(), nullptr);
    EXPECT_EQ(model.parts()->axis, 0);
    Parallelize(model, context, {});
    EXPECT_EQ(model.parts(), nullptr);
    Parallelize(model, context, plan);
    EXPECT_NE(model.parts(), nullptr);
  });
}

}  // namespace
}  // namespace weft

// Chunks and output placements against PyTorch's DTensor (chunks.json and placements.json, computed by
// make_golden.py). Where Weft's placements differ on purpose, placement_differences.json says what they are
// and why; docs/pytorch.md has the same reasons for readers.

#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/functions.h"
#include "gtest/gtest.h"
#include "mesh/shard_math.h"
#include "nlohmann/json.hpp"
#include "runtime/launch/run_ranks.h"

namespace weft {
namespace {

using Json = nlohmann::json;

Json ReadJson(const std::string& path) {
  std::ifstream file(path);
  WEFT_REQUIRE(static_cast<bool>(file), path, " cannot be read");
  return Json::parse(file);
}

DeviceMesh MeshOf(const Json& extents) {
  std::vector<std::string> axes;
  for (size_t i = 0; i < extents.size(); ++i)
    axes.push_back(absl::StrCat(i == 0 ? "a=" : "b=", extents[i].get<int>()));
  return DeviceMesh::Parse(absl::StrJoin(axes, ","));
}

TEST(GoldenLayoutsTest, ChunksAreAsPyTorchCuts) {
  const Json chunks = ReadJson("tests/golden/chunks.json");
  for (const Json& test_case : chunks["cases"]) {
    const DeviceMesh mesh = MeshOf(test_case["mesh"]);
    Layout layout(/*ndim=*/1, mesh.num_axes());
    for (int axis = 0; axis < mesh.num_axes(); ++axis) layout = layout.WithShard(axis, 0);
    std::vector<int64_t> sizes;
    for (int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
      sizes.push_back(
          LocalBox({test_case["size"].get<int64_t>()}, layout, mesh, mesh.CoordinateOf(rank)).shape[0]);
    }
    // PyTorch's chunk() gives no piece at all where one is empty.
    std::vector<int64_t> expected = test_case["sizes"].get<std::vector<int64_t>>();
    expected.resize(sizes.size());
    EXPECT_EQ(sizes, expected) << test_case.dump();
  }
}

using Call1 = std::function<DTensor(const std::vector<DTensor>&)>;

const std::map<std::string, Call1>& Callers() {
  static const std::map<std::string, Call1> callers = {
      {"matmul", [](const auto& x) { return MatMul(x[0], x[1]); }},
      {"add", [](const auto& x) { return Add(x[0], x[1]); }},
      {"mul", [](const auto& x) { return Mul(x[0], x[1]); }},
      {"sum_0", [](const auto& x) { return Sum(x[0], {0}); }},
      {"sum_1", [](const auto& x) { return Sum(x[0], {1}); }},
      {"mean_0", [](const auto& x) { return Mean(x[0], {0}); }},
      {"amax_0", [](const auto& x) { return Max(x[0], {0}); }},
      {"transpose", [](const auto& x) { return Transpose(x[0], 0, 1); }},
      {"exp", [](const auto& x) { return Exp(x[0]); }},
      {"neg", [](const auto& x) { return Neg(x[0]); }},
      {"relu", [](const auto& x) { return Relu(x[0]); }},
      {"softmax_1", [](const auto& x) { return Softmax(x[0], 1); }},
      {"flatten", [](const auto& x) { return Reshape(x[0], {96}); }},
      {"unflatten",
       [](const auto& x) {
         return Reshape(x[0], {4, 2, 12});
       }},
  };
  return callers;
}

// Where rank 0 of the mesh finds the output of a call: every rank makes it.
std::string OutputLayout(const IntrusivePtr<MeshContext>& context, const Json& test_case) {
  const DeviceMesh& mesh = context->mesh();
  std::vector<DTensor> operands;
  for (size_t i = 0; i < test_case["operands"].size(); ++i) {
    const Shape shape(test_case["shapes"][i].get<std::vector<int64_t>>());
    const Layout layout = Layout::Parse(test_case["operands"][i].get<std::string>(), mesh);
    const Shape piece = LocalBox(shape, layout, mesh, context->coordinate()).shape;
    const std::vector<float> values(piece.num_elements(), 0.5F);
    operands.push_back(DTensor::FromLocal(context, Tensor::FromValues<float>(piece, values), layout, shape));
  }
  return Callers().at(test_case["op"].get<std::string>())(operands).layout().ToString(mesh);
}

// "add [a, -] [-, -] P{a} on 4".
std::string CaseName(const Json& test_case) {
  return absl::StrCat(test_case["op"].get<std::string>(), " ",
                      absl::StrJoin(test_case["operands"].get<std::vector<std::string>>(), " x "), " on ",
                      absl::StrJoin(test_case["mesh"].get<std::vector<int>>(), "x"));
}

TEST(GoldenLayoutsTest, OutputPlacementsAreThoseOfPyTorchOrDifferForAReason) {
  const Json golden = ReadJson("tests/golden/placements.json");
  const Json differences = ReadJson("tests/golden/placement_differences.json");
  std::set<std::string> seen;
  for (const Json& extents : {Json({4}), Json({2, 2})}) {
    const DeviceMesh mesh = MeshOf(extents);
    RunRanks(static_cast<int>(mesh.num_ranks()), [&](World& world) {
      const IntrusivePtr<MeshContext> context = Bind(world, mesh);
      for (const Json& test_case : golden["cases"]) {
        if (test_case["mesh"] != extents) continue;
        const std::string actual = OutputLayout(context, test_case);
        if (world.rank() != 0) continue;
        const std::string name = CaseName(test_case);
        const std::string expected = test_case["output"];
        const bool is_listed = differences["cases"].contains(name);
        if (is_listed) seen.insert(name);
        if (Layout::Parse(actual, mesh) == Layout::Parse(expected, mesh)) {
          EXPECT_FALSE(is_listed) << name << ": listed as different, but is " << actual << " as in PyTorch";
        } else if (!is_listed) {
          ADD_FAILURE() << "DIFFERS|" << name << "|" << actual << "|" << expected;
        } else {
          EXPECT_EQ(actual, differences["cases"][name][0].get<std::string>()) << name;
          EXPECT_TRUE(differences["reasons"].contains(differences["cases"][name][1].get<std::string>()))
              << name;
        }
      }
    });
  }
  EXPECT_EQ(seen.size(), differences["cases"].size())
      << "placement_differences.json lists cases that do not exist";
}

}  // namespace
}  // namespace weft

#include "benchmarks/scale_mesh.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "benchmarks/figure.h"
#include "mesh/redistribution/bytes.h"
#include "mesh/redistribution/lowering.h"
#include "mesh/redistribution/planner.h"
#include "mesh/shard_math.h"
#include "ops/product/contract.h"
#include "ops/sharding/propagate.h"
#include "weft.h"

namespace weft {
namespace {

constexpr double kSecondsAPoint = 0.02;

const std::vector<int64_t> kMeshSizes = {8, 64, 512, 4096, 32768, 262144, 1048576};

// A world of many ranks seen from one of them, without the others: for what only asks who it is.
class LoneWorld final : public World {
 public:
  LoneWorld(int rank, int size) : World(rank, size, /*num_threads=*/1, MakeMetaAllocator(), nullptr) {}
  std::shared_ptr<Communicator> MakeGroup(const std::string& name, const std::vector<int>& ranks) override {
    Throw(absl::StatusCode::kUnimplemented, "a lone world makes no group '", name, "' of ", ranks.size(),
          " ranks");
  }
};

// All growth is along `dp`, which is what would show if something walked along an axis.
DeviceMesh MeshOf(int64_t num_ranks) { return DeviceMesh({{"dp", num_ranks / 4}, {"tp", 4}}); }

double Microseconds(const std::function<void()>& call) {
  return MedianNanoseconds(call, kSecondsAPoint) / 1e3;
}

struct Ends {
  const char* from;
  const char* to;
};
// Gathers, reductions and exchanges, along the long axis, the short one and both.
constexpr Ends kEnds[] = {
    {"[tp.dp, -]", "[tp, -]"},       {"[dp, -]", "[-, dp]"},   {"[-, -] P{dp}", "[dp, -]"},
    {"[-, -] P{dp}", "[-, -]"},      {"[dp, tp]", "[tp, dp]"}, {"[dp.tp, -]", "[-, tp]"},
    {"[tp, -] P{dp}", "[tp.dp, -]"},
};

// Of the extents that real models have, and of one that no mesh divides.
constexpr int64_t kEvenExtent = int64_t{1} << 22;
constexpr int64_t kUnevenExtent = 4000037;

// Calls visit(from, to, shape) for all ends.
template <class Visit>
void ForEachRedistribution(const DeviceMesh& mesh, int64_t extent, const Visit& visit) {
  const Shape shape = {extent, extent};
  for (const Ends& ends : kEnds) {
    visit(Layout::Parse(ends.from, mesh), Layout::Parse(ends.to, mesh), shape);
  }
}

double PlanMicroseconds(int64_t num_ranks, int64_t extent) {
  const DeviceMesh mesh = MeshOf(num_ranks);
  const CostModel cost_model(mesh);
  return Microseconds([&] {
    ForEachRedistribution(mesh, extent, [&](const Layout& from, const Layout& to, const Shape& shape) {
      PlanRedistribution(from, to, {DType::kF32, shape}, mesh, cost_model);
    });
  });
}

double BytesMicroseconds(int64_t num_ranks, int64_t extent) {
  const DeviceMesh mesh = MeshOf(num_ranks);
  const CostModel cost_model(mesh);
  std::vector<std::pair<Redistribution, Shape>> plans;
  ForEachRedistribution(mesh, extent, [&](const Layout& from, const Layout& to, const Shape& shape) {
    plans.emplace_back(PlanRedistribution(from, to, {DType::kF32, shape}, mesh, cost_model), shape);
  });
  return Microseconds([&] {
    for (const auto& [plan, shape] : plans) TotalBytes(plan, {DType::kF32, shape}, mesh);
  });
}

double PropagateMicroseconds(int64_t num_ranks) {
  const DeviceMesh mesh = MeshOf(num_ranks);
  const CostModel cost_model(mesh);
  const TensorTypes types = {{DType::kF32, {kEvenExtent, 4096}}, {DType::kF32, {4096, 16384}}};
  const ContractAttributes attributes = {"mk", "kn", "mn"};
  const TensorTypes outputs = kContract.Infer(types, &attributes);
  const Layout operands[] = {Layout::Parse("[dp, tp]", mesh), Layout::Parse("[dp, tp]", mesh)};
  return Microseconds([&] {
    Propagate({.op = &kContract,
               .attributes = &attributes,
               .operand_types = types,
               .operand_layouts = operands,
               .output_types = outputs},
              mesh, cost_model);
  });
}

double PiecesMicroseconds(int64_t num_ranks) {
  const DeviceMesh mesh = MeshOf(num_ranks);
  const Layout layout = Layout::Parse("[tp.dp, -]", mesh);
  const int rank = static_cast<int>(num_ranks - 1);
  return Microseconds([&] {
    const std::vector<int64_t> coordinate = mesh.CoordinateOf(rank);
    for (int64_t extent : {kEvenExtent, kUnevenExtent}) {
      LocalBox({extent, 64}, layout, mesh, coordinate);
      LargestPiece({extent, 64}, layout, mesh);
    }
  });
}

double BindMicroseconds(int64_t num_ranks) {
  LoneWorld world(static_cast<int>(num_ranks - 1), static_cast<int>(num_ranks));
  return Microseconds([&] { Bind(world, MeshOf(num_ranks)); });
}

double ResolveMicroseconds(int64_t num_ranks) {
  Gpt model({.vocabulary = 64, .context = 8, .layers = 4, .heads = 4, .dim = 16});
  const DeviceMesh mesh = MeshOf(num_ranks);
  const Plan plan = {{"wte", VocabParallel("tp")},
                     {"blocks.*.attn.qkv", ColumnParallel("tp")},
                     {"blocks.*.attn.proj", RowParallel("tp")},
                     {"blocks.*.mlp.up", ColumnParallel("tp")},
                     {"blocks.*.mlp.down", RowParallel("tp")},
                     {"blocks.*", FullyShard("dp")},
                     {"", FullyShard("dp")}};
  return Microseconds([&] { ResolvePlan(model, mesh, plan); });
}

// One rank's part in a gather, a reduction, and exchanges of even and of uneven pieces among `num_members`.
double LowerMicroseconds(int64_t num_members) {
  const DeviceMesh mesh({{"a", num_members / 4}, {"b", 4}});
  const CostModel cost_model(mesh);
  const std::vector<int64_t> coordinate = mesh.CoordinateOf(static_cast<int>(num_members / 2));
  constexpr Ends kOfOneGroup[] = {{"[a.b, -]", "[-, -]"},
                                  {"[-, -] P{a,b}", "[a.b, -]"},
                                  {"[a.b, -]", "[b, a]"},
                                  {"[a.b, -]", "[b.a, -]"}};
  std::vector<std::pair<Redistribution, Shape>> plans;
  for (int64_t extent : {int64_t{1} << 14, int64_t{16411}}) {
    const Shape shape = {extent, extent};
    for (const Ends& ends : kOfOneGroup) {
      plans.emplace_back(PlanRedistribution(Layout::Parse(ends.from, mesh), Layout::Parse(ends.to, mesh),
                                            {DType::kF32, shape}, mesh, cost_model),
                         shape);
    }
  }
  return Microseconds([&] {
    for (const auto& [plan, shape] : plans) Lower(plan, shape, mesh, coordinate);
  });
}

}  // namespace

std::vector<GrowthSeries> MeshSeries() {
  const auto flat = [](const char* name, std::function<double(int64_t)> microseconds) {
    return GrowthSeries{name, GrowthTarget::kFlat, kMeshSizes, std::move(microseconds)};
  };
  return {
      flat("mesh/create", [](int64_t n) { return Microseconds([n] { MeshOf(n); }); }),
      flat("mesh/bind", BindMicroseconds),
      flat("mesh/subgroup",
           [](int64_t n) {
             const DeviceMesh mesh = MeshOf(n);
             return Microseconds([&] { mesh.GroupOf(static_cast<int>(n / 2), {1}); });
           }),
      flat("mesh/pieces", PiecesMicroseconds),
      flat("mesh/resolve_plan", ResolveMicroseconds),
      flat("mesh/propagate", PropagateMicroseconds),
      flat("mesh/plan_redistribution", [](int64_t n) { return PlanMicroseconds(n, kEvenExtent); }),
      flat("mesh/plan_uneven", [](int64_t n) { return PlanMicroseconds(n, kUnevenExtent); }),
      flat("mesh/bytes", [](int64_t n) { return BytesMicroseconds(n, kEvenExtent); }),
      flat("mesh/bytes_uneven", [](int64_t n) { return BytesMicroseconds(n, kUnevenExtent); }),
      {"group/lower",
       GrowthTarget::kLinear,
       {8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096},
       LowerMicroseconds},
  };
}

}  // namespace weft

#include "tests/dtensor/redistribute_cases.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "dtensor/redistribution/executor.h"
#include "dtensor/redistribution/redistribute.h"
#include "gtest/gtest.h"
#include "mesh/redistribution/bytes.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

Redistribution PlanOf(const RedistributeCase& c, const Tensor& full, const DeviceMesh& mesh,
                      PlanObjective objective) {
  return PlanRedistribution(c.from, c.to, {full.dtype(), full.shape()}, mesh, CostModel(mesh),
                            {.objective = objective});
}

// Runs the cases on one world of thread ranks, from sources that the executor must leave as they are.
void RunCases(const DeviceMesh& mesh, const Tensor& full, bool column_major, PlanObjective objective,
              std::vector<RedistributeCase>& cases) {
  const int num_ranks = static_cast<int>(mesh.num_ranks());
  for (RedistributeCase& c : cases) {
    c.results.resize(num_ranks);
    c.bytes.resize(num_ranks);
    c.peak.resize(num_ranks);
  }
  RunRanks(num_ranks, [&](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, mesh);
    for (RedistributeCase& c : cases) {
      const Tensor piece = PieceOf(full, c.from, mesh, world.rank());
      const Tensor source = column_major ? ColumnMajor(piece) : CloneTensor(piece, world.allocator());
      world.ledger().Clear();
      world.allocator()->ResetPeak();
      const AllocatorStats before = world.allocator()->stats();
      const TensorType type = {full.dtype(), full.shape()};
      const Tensor result = objective == PlanObjective::kTime
                                ? RedistributeLocal(*context, source, type, c.from, c.to)
                                : RunRedistribution(*context, source,
                                                    Lower(PlanOf(c, full, mesh, objective), full.shape(),
                                                          mesh, context->coordinate()));
      const AllocatorStats after = world.allocator()->stats();
      // Less what rounding up may have added to each allocation.
      c.peak[world.rank()] = source.num_bytes() + after.peak_bytes - before.live_bytes -
                             kAllocationGranule * (after.num_allocations - before.num_allocations);
      c.bytes[world.rank()] = world.ledger().num_bytes();
      EXPECT_TRUE(SameBits(source, piece)) << "the source of " << c.from << " to " << c.to << " has changed";
      // A copy: `result` may be a view of `source`, or be read by peers.
      c.results[world.rank()] = CloneTensor(result, world.allocator());
    }
  });
}

// Every rank holds its slice of the whole, or terms that reduce to it; the ledger holds what the plan says,
// and no rank held more than it says.
::testing::AssertionResult Check(const RedistributeCase& c, const DeviceMesh& mesh, const Tensor& full,
                                 bool is_contiguous, PlanObjective objective) {
  const std::string what =
      absl::StrCat(full.TypeString(), " ", c.from.ToString(mesh), " to ", c.to.ToString(mesh));
  Layout whole = c.to;  // the same pieces, reduced
  for (int axis : c.to.PartialAxes()) whole = whole.WithReplicate(axis);
  for (int rank : mesh.ranks()) {
    std::vector<Tensor> terms;
    for (int member : mesh.GroupOf(rank, c.to.PartialAxes())) terms.push_back(c.results[member]);
    const auto same = SameBits(ReduceTerms(terms, c.to, mesh), PieceOf(full, whole, mesh, rank));
    if (!same) return ::testing::AssertionFailure() << what << ", rank " << rank << ": " << same.message();
  }
  int64_t bytes = 0;
  for (int64_t rank_bytes : c.bytes) bytes += rank_bytes;
  const Redistribution plan = PlanOf(c, full, mesh, objective);
  const int64_t planned = TotalBytes(plan, {full.dtype(), full.shape()}, mesh);
  if (bytes != planned) {
    return ::testing::AssertionFailure() << what << ": the ledgers hold " << bytes << " bytes, planned "
                                         << planned << ": " << plan.ToString(mesh);
  }
  const int64_t planned_peak = PeakBytes(plan, {full.dtype(), full.shape()}, mesh);
  const int64_t peak = *std::max_element(c.peak.begin(), c.peak.end());
  if (is_contiguous && peak > planned_peak) {
    return ::testing::AssertionFailure()
           << what << ": " << peak << " bytes held, planned " << planned_peak << ": " << plan.ToString(mesh);
  }
  return ::testing::AssertionSuccess();
}

}  // namespace

std::vector<RedistributeCase> AllPairs(const std::vector<Layout>& layouts) {
  std::vector<RedistributeCase> cases;
  for (const Layout& from : layouts) {
    for (const Layout& to : layouts) cases.push_back({from, to});
  }
  return cases;
}

void CheckRedistributions(absl::string_view mesh_text, const Tensor& full,
                          std::vector<RedistributeCase> cases, bool column_major, PlanObjective objective) {
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  RunCases(mesh, full, column_major, objective, cases);
  for (const RedistributeCase& c : cases) ASSERT_TRUE(Check(c, mesh, full, !column_major, objective));
}

void CheckEveryPair(absl::string_view mesh, const Shape& shape, size_t part, size_t num_parts) {
  const std::vector<Layout> layouts = AllLayouts(DeviceMesh::Parse(mesh), shape.ndim(), {ReduceOp::kSum});
  const std::vector<RedistributeCase> all = AllPairs(layouts);
  std::vector<RedistributeCase> by_objective[2];
  for (size_t i = part; i < all.size(); i += num_parts) by_objective[i / num_parts % 2].push_back(all[i]);
  const Tensor full = WholeNumbers(DType::kF32, shape);
  CheckRedistributions(mesh, full, by_objective[0], /*column_major=*/false, PlanObjective::kTime);
  CheckRedistributions(mesh, full, by_objective[1], /*column_major=*/false, PlanObjective::kBytes);
}

}  // namespace weft

#include "tests/parallel/compression/summed_gradients.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "dtensor/dtensor.h"
#include "gtest/gtest.h"
#include "parallel/compression/gradient_compression.h"
#include "runtime/base/philox.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

Tensor TermOf(const SummedGradients& run, int rank, int leaf, int64_t step) {
  std::vector<double> values(run.shapes[leaf].num_elements());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = run.term ? run.term(rank, leaf, step, i) : RandomTerm(rank, leaf, step, i);
    if (run.scale) values[i] *= run.scale(step);
    if (run.dtype == DType::kF32) values[i] = static_cast<float>(values[i]);
  }
  const Tensor wide = Tensor::FromValues<double>(run.shapes[leaf], values);
  const Tensor term = Tensor::Empty(MakeCpuAllocator(), run.dtype, run.shapes[leaf]);
  CopyTensor(wide, term);
  return term;
}

DeviceMesh MeshOf(const SummedGradients& run) {
  return DeviceMesh::Parse(
      absl::StrCat("replica=", run.num_replicas, ",dp=", run.num_ranks / run.num_replicas));
}

std::vector<CompressedLeaf> LeavesOf(const SummedGradients& run) {
  std::vector<CompressedLeaf> leaves;
  for (size_t leaf = 0; leaf < run.shapes.size(); ++leaf) {
    const int ndim = run.shapes[leaf].ndim();
    Layout layout(ndim, /*num_axes=*/2);
    if (run.scatters) layout = layout.WithShard(/*axis=*/1, static_cast<int>(leaf) % ndim);
    leaves.push_back({.path = absl::StrCat("w", leaf),
                      .type = {run.dtype, run.shapes[leaf]},
                      .layout = layout,
                      .communication = {CommunicationMethod::Parse(run.method), {0, 1}}});
  }
  return leaves;
}

// Of one rank.
GradientSums SumOnRank(const SummedGradients& run, World& world) {
  GradientSums result;
  const auto context = Bind(world, MeshOf(run));
  context->state().set_seed(17);
  const ReduceOp op = run.average ? ReduceOp::kAvg : ReduceOp::kSum;
  const std::vector<CompressedLeaf> leaves = LeavesOf(run);
  const auto compression = GradientCompression::Make(*context, leaves);
  for (int64_t step = 0; step < run.steps; ++step) {
    world.ledger().Clear();
    std::vector<ArrivedGradient> gradients;
    for (int leaf = 0; leaf < std::ssize(leaves); ++leaf) {
      Layout arriving(run.shapes[leaf].ndim(), /*num_axes=*/2);
      for (const int axis : {0, 1}) arriving = arriving.WithPartial(axis, op);
      EXPECT_TRUE(compression->Takes(leaf, arriving));
      const Tensor term = CloneTensor(TermOf(run, world.rank(), leaf, step), context->allocator());
      gradients.push_back({leaf, DTensor::FromLocal(context, term, arriving, run.shapes[leaf])});
    }
    // Both ways of running, in turn.
    const bool waits = step % 2 == 1;
    if (run.scale) compression->BeginScaledStep(run.scale(step));
    const std::vector<DTensor> sums = compression->Reduce(
        std::move(gradients), waits ? Lane::kInline : Lane::kGrad, waits ? Lane::kInline : Lane::kReplica);
    compression->EndPass();
    for (int leaf = 0; leaf < std::ssize(leaves); ++leaf) {
      EXPECT_EQ(sums[leaf].layout(), leaves[leaf].layout);
      sums[leaf].ToLocal();  // waits
    }
    if (run.scale) compression->EndScaledStep(!run.skips || !run.skips(step));
    result.num_bytes.clear();
    for (const LedgerEntry& entry : world.ledger().entries()) {
      result.num_bytes[std::string(CollectiveName(entry.kind))] += entry.num_bytes;
    }
    result.sums.emplace_back();
    for (const DTensor& sum : sums) result.sums.back().push_back(sum.FullTensor().ToVector<double>());
  }
  for (const auto& entry : compression->State()) {
    result.state[entry.name] = entry.tensor.FullTensor().ToVector<double>();
  }
  return result;
}

}  // namespace

double RandomTerm(int rank, int leaf, int64_t step, int64_t i) {
  const RandomKey key = {.seed = 5, .stream = StreamOf("term", rank * 100 + leaf), .step = uint64_t(step)};
  return NormalAt(key, i) * std::pow(10.0, leaf - 4);
}

GradientSums SumGradients(const SummedGradients& run) {
  std::vector<GradientSums> of_ranks(run.num_ranks);
  const auto body = [&](World& world) { of_ranks[world.rank()] = SumOnRank(run, world); };
  run.run_ranks ? run.run_ranks(run.num_ranks, body) : RunRanks(run.num_ranks, body);
  GradientSums all = of_ranks[0];
  all.num_bytes.clear();
  for (const GradientSums& of_rank : of_ranks) {
    for (size_t step = 0; step < all.sums.size(); ++step) {
      for (size_t leaf = 0; leaf < all.sums[step].size(); ++leaf) {
        for (size_t i = 0; i < all.sums[step][leaf].size(); ++i) {
          const double here = of_rank.sums[step][leaf][i], there = all.sums[step][leaf][i];
          EXPECT_TRUE(here == there || (std::isnan(here) && std::isnan(there)))
              << run.method << ": ranks differ";
        }
      }
    }
    for (const auto& [name, num_bytes] : of_rank.num_bytes) all.num_bytes[name] += num_bytes;
  }
  for (int64_t step = 0; step < run.steps; ++step) {
    all.exact.emplace_back();
    for (int leaf = 0; leaf < std::ssize(run.shapes); ++leaf) {
      std::vector<double> sum(run.shapes[leaf].num_elements());
      for (int rank = 0; rank < run.num_ranks; ++rank) {
        const std::vector<double> term = TermOf(run, rank, leaf, step).ToVector<double>();
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += term[i] / (run.average ? run.num_ranks : 1);
      }
      all.exact.back().push_back(sum);
    }
  }
  return all;
}

std::vector<std::vector<double>> ResidualSums(const SummedGradients& run, const GradientSums& sums) {
  std::vector<std::vector<double>> residuals;
  for (size_t leaf = 0; leaf < run.shapes.size(); ++leaf) {
    residuals.emplace_back(run.shapes[leaf].num_elements());
    for (const char* name : {".residual", ".replicas.residual"}) {
      const auto found = sums.state.find(absl::StrCat("communication.w", leaf, name));
      if (found == sums.state.end()) continue;
      for (size_t i = 0; i < found->second.size(); ++i) {
        residuals.back()[i % residuals.back().size()] += found->second[i];
      }
    }
  }
  return residuals;
}

double Lost(const SummedGradients& run) {
  const GradientSums sums = SumGradients(run);
  const std::vector<std::vector<double>> residuals = ResidualSums(run, sums);
  double worst = 0;
  for (size_t leaf = 0; leaf < run.shapes.size(); ++leaf) {
    double largest = 0, lost = 0;
    for (int64_t i = 0; i < run.shapes[leaf].num_elements(); ++i) {
      double made = residuals[leaf][i], exact = 0;
      for (int64_t step = 0; step < run.steps; ++step) {
        if (run.skips && run.skips(step)) continue;
        const double scale = run.scale ? run.scale(step) : 1;
        made += sums.sums[step][leaf][i] / scale;
        exact += sums.exact[step][leaf][i] / scale;
      }
      largest = std::max(largest, std::abs(exact));
      lost = std::max(lost, std::abs(made - exact));
    }
    if (lost > 0) worst = std::max(worst, lost / largest);
  }
  return worst;
}

}  // namespace weft

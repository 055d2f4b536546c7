#include "tests/parallel/compression/summed_gradients.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "dtensor/dtensor.h"
#include "gtest/gtest.h"
#include "parallel/compression/gradient_compression.h"
#include "parallel/styles.h"
#include "runtime/base/philox.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

Tensor TermOf(const SummedGradients& run, int rank, int leaf, int64_t step) {
  std::vector<double> values(run.shapes[leaf].num_elements());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = run.term ? run.term(rank, leaf, step, i) : RandomTerm(rank, leaf, step, i);
    if (run.dtype == DType::kF32) values[i] = static_cast<float>(values[i]);
  }
  const Tensor wide = Tensor::FromValues<double>(run.shapes[leaf], values);
  const Tensor term = Tensor::Empty(MakeCpuAllocator(), run.dtype, run.shapes[leaf]);
  CopyTensor(wide, term);
  return term;
}

// Of one rank.
GradientSums SumOnRank(const SummedGradients& run, World& world) {
  GradientSums result;
  const auto context = Bind(world, DeviceMesh::Parse(absl::StrCat("dp=", run.num_ranks)));
  context->state().set_seed(17);
  const ReduceOp op = run.average ? ReduceOp::kAvg : ReduceOp::kSum;
  std::vector<CompressedLeaf> leaves;
  for (size_t leaf = 0; leaf < run.shapes.size(); ++leaf) {
    leaves.push_back({.path = absl::StrCat("w", leaf),
                      .type = {run.dtype, run.shapes[leaf]},
                      .layout = Layout(run.shapes[leaf].ndim(), 1),
                      .communication = {CommunicationMethod::Parse(run.method), {0}}});
  }
  const auto compression = GradientCompression::Make(*context, leaves);
  for (int64_t step = 0; step < run.steps; ++step) {
    world.ledger().Clear();
    std::vector<ArrivedGradient> gradients;
    for (int leaf = 0; leaf < std::ssize(leaves); ++leaf) {
      const Layout arriving = leaves[leaf].layout.WithPartial(0, op);
      EXPECT_TRUE(compression->Takes(leaf, arriving));
      const Tensor term = CloneTensor(TermOf(run, world.rank(), leaf, step), context->allocator());
      gradients.push_back({leaf, DTensor::FromLocal(context, term, arriving, run.shapes[leaf])});
    }
    // Both ways of running, in turn.
    const std::vector<DTensor> sums =
        compression->Reduce(std::move(gradients), step % 2 == 0 ? Lane::kGrad : Lane::kInline);
    compression->EndPass();
    result.sums.emplace_back();
    for (const DTensor& sum : sums) result.sums.back().push_back(sum.ToLocal().ToVector<double>());
  }
  std::map<std::string, std::vector<double>> state;
  for (const auto& entry : compression->State())
    state[entry.name] = entry.tensor.ToLocal().ToVector<double>();
  result.state = {state};
  for (const LedgerEntry& entry : world.ledger().entries()) {
    result.num_bytes[std::string(CollectiveName(entry.kind))] += entry.num_bytes;
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
  RunRanks(run.num_ranks, [&](World& world) { of_ranks[world.rank()] = SumOnRank(run, world); });
  GradientSums all = of_ranks[0];
  all.num_bytes.clear();
  all.state.clear();
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
    all.state.push_back(of_rank.state[0]);
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
    for (const auto& state : sums.state) {
      const auto found = state.find(absl::StrCat("communication.w", leaf, ".residual"));
      if (found == state.end()) continue;
      for (size_t i = 0; i < residuals.back().size(); ++i) residuals.back()[i] += found->second[i];
    }
  }
  return residuals;
}

}  // namespace weft

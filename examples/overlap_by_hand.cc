// An overlap without a plan: a product whose second factor rests split. Its columns are gathered a block at a time,
// each block while the ones before it are multiplied, and the host adds up what is done, beside both. Tasks and
// what they wait for are all there is to say; no thread, no wait, no lock.
//
//   bazel run //examples:overlap_by_hand
//
// Prints on rank 0 the order of the tasks, the same on every rank, and that the result is the plain product's:
//   gather 0, gather 1, multiply 0, add 0, gather 2, multiply 1, add 1, multiply 2, add 2
//   3 blocks: the same bits as one product, the same sum

#include <cstdio>
#include <string>
#include <vector>

#include "weft.h"

using weft::DTensor;
using weft::TaskGraph;

namespace {

constexpr int kBlocks = 3;
constexpr int64_t kColumns = 8;  // of a block

// A block by itself, so that the program above reads as one product.
struct Block {
  DTensor weight;              // [k, n / 3] [dp, -]: rests split
  DTensor product;             // [m, n / 3] [-, -]
  std::vector<double> values;  // of the product
  double sum = 0;
};

double SumOf(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

}  // namespace

int main() {
  const weft::DeviceMesh mesh({{"dp", 2}});
  weft::RunRanks(2, [&](weft::World& world) {
    const auto context = weft::Bind(world, mesh);
    const weft::Layout split = weft::Layout::Parse("[dp, -]", mesh),
                       whole = weft::Layout::Parse("[-, -]", mesh);
    const DTensor x = weft::RandomNormal(context, weft::DType::kF64, {16, 32}, whole, "x");
    const DTensor w = weft::RandomNormal(context, weft::DType::kF64, {32, kBlocks * kColumns}, split, "w");

    std::vector<Block> blocks(kBlocks);
    std::vector<TaskGraph::Task> multiplies;
    std::vector<std::string> names;
    TaskGraph graph(context);
    for (int i = 0; i < kBlocks; ++i) {
      Block& block = blocks[i];
      block.weight = weft::Slice(w, 1, i * kColumns, kColumns);
      // Two blocks ahead, no more: they take memory.
      std::vector<TaskGraph::Task> before;
      if (i >= 2) before = {multiplies[i - 2]};
      const auto gather = graph.Communicate(
          "gather " + std::to_string(i), weft::Lane::kParam,
          [&block, whole] { return std::vector<weft::EachMove>{{.source = block.weight, .to = whole}}; },
          before);
      const auto multiply =
          graph.Compute("multiply " + std::to_string(i),
                        [&x, &block, &graph, gather] {
                          block.product = weft::MatMul(x, graph.Results(gather)[0]);  // [m, k] x [k, n / 3]
                          block.values = block.product.ToLocal().ToVector<double>();
                        },
                        {gather});
      multiplies.push_back(multiply);
      graph.Host("add " + std::to_string(i), [&block] { block.sum = SumOf(block.values); }, {multiply});
    }
    graph.Run();

    const DTensor plain = weft::MatMul(x, w.Redistribute(whole));
    bool same_bits = true, same_sum = true;
    for (int i = 0; i < kBlocks; ++i) {
      const auto columns = weft::Slice(plain, 1, i * kColumns, kColumns).FullTensor().ToVector<double>();
      same_bits &= columns == blocks[i].values;
      same_sum &= SumOf(columns) == blocks[i].sum;
    }
    if (world.rank() != 0) return;
    for (const TaskGraph::Task task : graph.Order()) {
      std::printf("%s%s", task == graph.Order()[0] ? "" : ", ", graph.Name(task).c_str());
    }
    std::printf("\n%d blocks: %s bits as one product, %s sum\n", kBlocks, same_bits ? "the same" : "OTHER",
                same_sum ? "the same" : "ANOTHER");
  });
}

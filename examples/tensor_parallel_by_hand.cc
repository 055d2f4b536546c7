// Tensor parallelism without a plan: a two-layer network whose author says, tensor by tensor, where things
// lie. Layouts and Redistribute are all there is; the plan's styles do no more than this.
//
//   bazel run //examples:tensor_parallel_by_hand
//
// Prints what rank 0 sees, and what the collectives of forward and backward moved:
//   hidden: f64[8, 16] [-, tp]           each rank computes half of the features
//   term:   f64[8, 4] [-, -] P{tp}       each rank has a term of the sum
//   y:      f64[8, 4] [-, -]             one all-reduce
//   ... followed by the communication report.

#include <cstdio>

#include "weft.h"

using weft::DTensor;

int main() {
  const weft::DeviceMesh mesh({{"tp", 2}});
  weft::RunRanks(2, [&](weft::World& world) {
    const auto context = weft::Bind(world, mesh);
    const weft::Layout whole(/*ndim=*/2, mesh.num_axes());
    const auto normal = [&](const weft::Shape& shape, const weft::Layout& layout, const char* name) {
      return weft::RandomNormal(context, weft::DType::kF64, shape, layout, name).RequiresGrad();
    };
    const DTensor x = normal({8, 6}, whole, "x");
    const DTensor up = normal({6, 16}, {mesh, 2, {{"tp", weft::Shard(1)}}}, "up");      // by output feature
    const DTensor down = normal({16, 4}, {mesh, 2, {{"tp", weft::Shard(0)}}}, "down");  // by input feature
    world.ledger().Clear();

    // Entering the split part: the identity in forward; in backward the ranks' terms of the gradient are
    // summed.
    const DTensor input = x.Redistribute(whole);
    const DTensor hidden = weft::Gelu(weft::MatMul(input, up));
    const DTensor term = weft::MatMul(hidden, down);
    // Leaving it: the ranks' terms are summed.
    const DTensor y = term.Redistribute(whole);
    weft::Backward(weft::Mean(weft::Square(y)));

    const weft::CommReport report = weft::CollectCommReport(*context);
    if (world.rank() != 0) return;
    std::printf("hidden: %s\nterm:   %s\ny:      %s\n\n%s", hidden.ToString().c_str(),
                term.ToString().c_str(), y.ToString().c_str(), report.ToTable().c_str());
  });
}

// A tensor over four ranks: made in pieces, multiplied where the pieces lie, gathered at the end.
//
//   bazel run //examples:hello_dtensor
//
// Prints what rank 0 sees:
//   x: f32[6, 4] [dp, -], here [3, 4]
//   w: f32[4, 5] [-, tp], here [4, 3]
//   y: f32[6, 5] [dp, tp], here [3, 3]
//   y[0]: 4 4 4 4 4

#include <cstdio>

#include "weft.h"

int main() {
  weft::RunRanks(4, [](weft::World& world) {
    const weft::DeviceMesh mesh({{"dp", 2}, {"tp", 2}});
    const auto context = weft::Bind(world, mesh);
    const auto x = weft::Ones(context, weft::DType::kF32, {6, 4}, {mesh, 2, {{"dp", weft::Shard(0)}}});
    const auto w = weft::Ones(context, weft::DType::kF32, {4, 5}, {mesh, 2, {{"tp", weft::Shard(1)}}});
    const auto y = weft::MatMul(x, w);  // every rank multiplies its pieces; nothing is sent
    const std::vector<float> full = y.FullTensor().ToVector<float>();  // an all-gather over each axis
    if (world.rank() != 0) return;
    for (const auto& [name, t] : {std::pair("x", x), std::pair("w", w), std::pair("y", y)}) {
      std::printf("%s: %s, here %s\n", name, t.ToString().c_str(), t.ToLocal().shape().ToString().c_str());
    }
    std::printf("y[0]: %g %g %g %g %g\n", full[0], full[1], full[2], full[3], full[4]);
  });
}

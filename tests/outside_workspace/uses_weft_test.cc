// A program of another workspace: links @weft//:weft, includes weft.h, and computes over two ranks.

#include <cmath>
#include <cstdio>

#include "weft.h"

int main() {
  double sum = 0;
  weft::RunRanks(2, [&](weft::World& world) {
    const weft::DeviceMesh mesh({{"tp", 2}});
    const auto context = weft::Bind(world, mesh);
    const auto x = weft::Full(context, weft::DType::kF32, {3, 5}, 2, {mesh, 2, {{"tp", weft::Shard(1)}}});
    const double here = weft::Sum(weft::MatMul(x, weft::Full(context, weft::DType::kF32, {5, 4}, 1))).Item();
    if (world.rank() == 0) sum = here;
  });
  std::printf("sum %g, expected 120\n", sum);  // 3 x 4 elements of 5 * 2
  return std::abs(sum - 120) < 1e-6 ? 0 : 1;
}

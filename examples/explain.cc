// Why a call is spread as it is, and how to be told when something moves that nobody asked for.
//
//   bazel run //examples:explain
//
// Prints the candidates of a matrix product whose operands are both split over their rows, then the error
// that it is where implicit redistribution is forbidden, then what x holds where. docs/seeing.md goes through
// it.

#include <cstdio>

#include "weft.h"

int main() {
  weft::RunRanks(4, [](weft::World& world) {
    const weft::DeviceMesh mesh({{"dp", 4}});
    const auto context = weft::Bind(world, mesh);
    const auto ones = [&](const weft::Shape& shape, const char* layout) {
      return weft::Full(context, weft::DType::kF32, shape, 1, weft::Layout::Parse(layout, mesh));
    };
    const auto x = ones({4096, 256}, "[dp, -]");
    const auto w = ones({256, 512}, "[dp, -]");

    // Explains the calls of any code that runs inside; weft::Explain(op, operands, attributes) runs nothing.
    const auto calls = weft::ExplainCalls(context->state(), [&] { weft::MatMul(x, w); });
    if (world.rank() == 0) std::printf("%s\n", calls[0].ToString().c_str());

    try {
      const weft::ImplicitRedistributionGuard guard(context->state(), weft::ImplicitRedistribution::kForbid);
      weft::MatMul(x, w);
    } catch (const weft::Error& error) {
      if (world.rank() == 0) std::printf("%s\n\n", error.what());
    }
    if (world.rank() == 0) std::printf("%s", weft::Visualize(x).c_str());
  });
}

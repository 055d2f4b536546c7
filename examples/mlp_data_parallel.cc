// Fits a two-layer network to a function, on one rank and again over two ranks that each take half of the
// batch, and shows that the losses are the same numbers: data parallelism changes where things lie, not what
// is computed.
//
//   bazel run //examples:mlp_data_parallel
//
// Prints every 20 steps: step, loss on one rank, loss on two, their relative difference (in f64: rounding
// only).

#include <cmath>
#include <cstdio>
#include <vector>

#include "weft.h"

namespace {

// The model: a single-device program.
class Net : public weft::Module {
 public:
  Net()
      : hidden(this, "hidden", 2, 32, {.weight = weft::Initializer::Normal(0, 0.7)}),
        out(this, "out", 32, 1) {}
  weft::Linear hidden;
  weft::Linear out;

 protected:
  weft::DTensor Forward(const weft::DTensor& x) override { return out(weft::Tanh(hidden(x))); }
};

std::vector<double> Train(const weft::DeviceMesh& mesh, const weft::Plan& plan, int steps) {
  std::vector<double> losses(steps);
  weft::RunRanks(static_cast<int>(mesh.num_ranks()), [&](weft::World& world) {
    Net net;
    const auto context = weft::Parallelize(net, world, mesh, plan, {.dtype = weft::DType::kF64});
    weft::Sgd optimizer(net.AllParameters(), {.momentum = 0.9});
    for (int step = 0; step < steps; ++step) {
      context->state().set_step(step);
      // 65 samples: two ranks hold 33 and 32. Every layout draws the same ones.
      const weft::Layout replicated(2, mesh.num_axes());
      const auto x = weft::RandomNormal(context, weft::DType::kF64, {65, 2}, replicated, "x");
      const auto target = weft::Slice(x, 1, 0, 1) * weft::Slice(x, 1, 1, 1);
      const auto loss = weft::Mean(weft::Square(net(x) - target));
      weft::Backward(loss);
      optimizer.Step(0.05);
      optimizer.ZeroGrad();
      const double value = loss.Item();
      if (world.rank() == 0) losses[step] = value;
    }
  });
  return losses;
}

}  // namespace

int main() {
  const int steps = 200;
  const std::vector<double> one = Train(weft::DeviceMesh(), {}, steps);
  const std::vector<double> two =
      Train(weft::DeviceMesh({{"dp", 2}}), {{"", weft::DataParallel("dp")}}, steps);
  for (int step = 0; step < steps; step += 20) {
    std::printf("step %3d  one rank %.6f  two ranks %.6f  relative difference %.1e\n", step, one[step],
                two[step], std::abs(one[step] - two[step]) / one[step]);
  }
}

#include <cstdio>

#include "weft.h"

// The model: a program for one device.
class Net : public weft::Module {
 public:
  Net() : up(this, "up", 16, 64), down(this, "down", 64, 1) {}
  weft::Linear up, down;

 protected:
  weft::DTensor Forward(const weft::DTensor& x) override { return down(weft::Gelu(up(x))); }
};

int main() {
  // How it is spread: hidden features over tp, batch and parameters over dp.
  const weft::DeviceMesh mesh({{"dp", 2}, {"tp", 2}});
  const weft::Plan plan = {
      {"up", weft::ColumnParallel("tp")}, {"down", weft::RowParallel("tp")}, {"", weft::FullyShard("dp")}};

  const auto num_ranks = static_cast<int>(mesh.num_ranks());
  weft::RunRanks(num_ranks, [&](weft::World& world) {  // four threads; this runs on each
    Net net;
    const auto context = weft::Parallelize(net, world, mesh, plan);
    weft::AdamW optimizer(net.AllParameters(), {});
    const weft::Layout whole(/*ndim=*/2, mesh.num_axes());  // on every rank
    const auto x = weft::RandomNormal(context, weft::DType::kF32, {64, 16}, whole, "x");
    for (int step = 1; step <= 100; ++step) {
      const auto loss = weft::Mean(weft::Square(net(x) - weft::Sum(x, {1}, /*keep_dims=*/true)));
      weft::Backward(loss);
      optimizer.Step(/*lr=*/0.01);
      optimizer.ZeroGrad();
      const double value = loss.Item();
      if (world.rank() == 0 && step % 20 == 0) std::printf("step %d  loss %.4f\n", step, value);
    }
  });
}

// A program of another workspace: links @weft//:spawn_ranks alone, and sums over two processes.

#include <cstdio>
#include <stdexcept>

#include "runtime/comm/communicator.h"
#include "runtime/launch/spawn_ranks.h"
#include "runtime/tensor/tensor.h"

int main(int argc, char** argv) {
  return weft::SpawnRanks(2, argc, argv, [](weft::World& world) {
    const auto group = world.NewGroup("all", {0, 1});
    const auto tensor = weft::Tensor::Empty(world.allocator(), weft::DType::kF32, {1});
    tensor.data<float>()[0] = static_cast<float>(world.rank() + 1);
    group->AllReduce(tensor, tensor, weft::ReduceOp::kSum).Wait();
    std::printf("rank %d: sum %g, expected 3\n", world.rank(), static_cast<double>(tensor.data<float>()[0]));
    if (tensor.data<float>()[0] != 3) throw std::runtime_error("a wrong sum");
  });
}

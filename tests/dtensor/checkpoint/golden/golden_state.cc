#include "tests/dtensor/checkpoint/golden/golden_state.h"

#include "dtensor/functions.h"

namespace weft {

State GoldenState(World& world) {
  const DeviceMesh mesh = DeviceMesh::Parse("pp=2");
  const auto context = Bind(world, mesh);
  const auto stage = Bind(context, mesh.Slice({{"pp", world.rank()}}));
  std::vector<std::pair<std::string, DTensor>> tensors = {
      {"split", Full(context, DType::kF32, {5, 2}, 0).Redistribute(Layout(2, 1).WithShard(0, 0))},
      {"count", Full(context, DType::kI64, {}, 0)},
      {world.rank() == 0 ? "first" : "second",
       Full(stage, world.rank() == 0 ? DType::kF32 : DType::kBF16, {3}, 0)},
      {"both", Full(stage, DType::kF64, {2}, 0)},
  };
  State state;
  state.Add("tensors", MakeTensorState([tensors] { return tensors; }));
  state.Add("text", MakeTextsState([] { return StateTexts{{"flags", "{\"layers\": \"2\"}"}}; }));
  return state;
}

}  // namespace weft

// Writes a golden checkpoint of the format that this Weft writes, of which it keeps one of each version:
//
//   bazel run //tests/dtensor/checkpoint/golden:make_golden -- $PWD/tests/dtensor/checkpoint/golden/format-1
//
// Once, when kCheckpointFormat has changed: what an older Weft wrote is not to be written by a newer.

#include <string>

#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "runtime/launch/run_ranks.h"
#include "tests/dtensor/checkpoint/golden/golden_state.h"
#include "tests/dtensor/checkpoint/state/state_cases.h"

int main(int argc, char** argv) {
  if (argc != 2) return 1;
  weft::RunRanks(2, [&](weft::World& world) {
    const weft::State state = weft::GoldenState(world);
    weft::CheckpointManager manager(world, {.folder = argv[1], .incremental = true, .generation = 1});
    weft::FillState(state, 7);
    manager.Save(1, state);
    // "split" stays; the others change.
    weft::FillState(state, 8);
    for (const auto& part : state.parts()) {
      for (const weft::StateTensor& tensor : part.second->Tensors()) {
        if (tensor.name == "split") weft::FillTensorOf(tensor, 7);
      }
    }
    manager.Save(2, state);
  });
  return 0;
}

#ifndef WEFT_DTENSOR_CHECKPOINT_CHECKPOINT_H_
#define WEFT_DTENSOR_CHECKPOINT_CHECKPOINT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/checkpoint/safetensors.h"
#include "dtensor/dtensor.h"
#include "dtensor/nn/model_parts.h"
#include "dtensor/nn/module.h"
#include "dtensor/optim/optimizer.h"

namespace weft {

// Saves named tensors, whole and in the order given, with some texts, as one safetensors file that knows
// nothing of the mesh: it loads on any other. Rank 0 of the mesh writes; every rank calls it alike. On return the file is there,
// on every rank; what was there before stays until all have called.
//
// `parts`: of a model of which ranks have different stages or parts (PartsOf, dtensor/nn/segmented_module.h), which give those
// tensors that are on theirs; null: all ranks give all. What several of them have is written once, as the first has it; the
// order is that of stages or parts.
// Cost:   one gather a tensor, under purpose `param`; one tensor is whole at a time. Of other stages or parts than the
//         writer's one message each, and one all-gather of the names. Ranks hear from each other when the writer
//         begins, twice when it has written all, and when it ends, for which they wait an hour at most.
// Errors: as SafetensorsWriter, on every rank; what World::ThrowIfCutOff throws on any of them, before the file is replaced;
//         with `parts` also for a name that stands twice on one of them; without, for tensors of a model of which this rank
//         has a stage or part alone, before anything is written. Where a rank alone has no memory for what one of another
//         stage or part sends, all throw, and the group along the axis of parts is over. An error of a gather is as any
//         collective's.
void SaveTensors(const std::string& path, const std::vector<std::pair<std::string, DTensor>>& tensors,
                 const SafetensorsMetadata& metadata, const ModelParts* parts = nullptr);

// A model's parameters and its buffers that persist under their paths, then an optimizer's state under its names; of those
// that are here.
std::vector<std::pair<std::string, DTensor>> CheckpointTensors(Module& model, const Optimizer& optimizer);

// Reads this rank's pieces of every parameter of the model, in place, and of every buffer that persists; or of every tensor
// of an optimizer's state, in place. Files written before optimizers counted their updates have none: `updates_of_older` stands in, the
// number of steps, all of which counted then.
// Errors: NotFound naming the tensor that the file lacks; InvalidArgument for another dtype or shape.
void LoadParameters(SafetensorsReader& reader, Module& model);
void LoadOptimizerState(SafetensorsReader& reader, const Optimizer& optimizer,
                        std::optional<int64_t> updates_of_older = std::nullopt);

// The same of any tensors under the names that they were saved with, for other state of a run: WeightAverage::State(),
// LossScale::State().
void LoadTensors(SafetensorsReader& reader, const std::vector<std::pair<std::string, DTensor>>& tensors);

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_CHECKPOINT_H_

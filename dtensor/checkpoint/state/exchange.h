// Checkpoints to and from one file.

#ifndef WEFT_DTENSOR_CHECKPOINT_STATE_EXCHANGE_H_
#define WEFT_DTENSOR_CHECKPOINT_STATE_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/checkpoint/files/files.h"
#include "dtensor/checkpoint/state/state.h"
#include "dtensor/checkpoint/tensor_source.h"

namespace weft {

// Writes the tensors of a checkpoint whose names `wanted` takes as one safetensors file, with texts as its metadata.
// Without a function: all.
// Cost:   one tensor is in memory at a time.
// Errors: as SafetensorsWriter; those of the source; InvalidArgument, if there is nothing to write.
void ExportTensors(TensorSource& source, const StateTexts& texts, const std::string& path,
                   const std::function<bool(const std::string& name)>& wanted = nullptr);

// Writes all tensors of a source as a step of a folder, as one rank saves it; CheckpointManager loads it on any number.
// Cost:   all of it is in memory.
// Errors: as WriteStep.
void ImportStep(const std::shared_ptr<Files>& files, const std::string& folder, int64_t step,
                TensorSource& source, const StateTexts& texts);

// How two checkpoints differ in one tensor.
struct TensorDifference {
  std::string name;
  std::string what;    // "only in the first", "f32[2] and f32[3]", "3 of 10 elements differ"
  double largest = 0;  // of floating elements, the largest difference; nan, if one is nan
  bool operator==(const TensorDifference&) const = default;
};

// Of all tensors that are not the same bits, by name.
// Cost:   two tensors are in memory at a time.
std::vector<TensorDifference> DiffTensors(TensorSource& first, TensorSource& second);

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_STATE_EXCHANGE_H_

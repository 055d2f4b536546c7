// A model's state by name: to save the weights alone, to load them whole or in part, under other names, in another dtype.

#ifndef WEFT_DTENSOR_CHECKPOINT_MODEL_STATE_H_
#define WEFT_DTENSOR_CHECKPOINT_MODEL_STATE_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "dtensor/checkpoint/safetensors.h"
#include "dtensor/dtensor.h"
#include "dtensor/nn/model_parts.h"
#include "dtensor/nn/module.h"

namespace weft {

using StateMap = std::map<std::string, DTensor>;

// How names of a module's state and names outside of it go together.
struct StateNames {
  // Stands before each name outside. Names that do not begin with it are not the module's: they are not looked at.
  std::string prefix = "";
  // The name outside of what the module calls `name`, without the prefix; "" for what is not to be saved or loaded.
  // Not given: the same.
  std::function<std::string(const std::string& name)> rename = nullptr;
};

// Parameters at rest and buffers that persist, of a module and all below it, by their paths from it on: those that are
// here, without history. They share memory with the model: an update changes them. A model's copy of its own is
// CloneState.
// Errors: FailedPrecondition before there are values; InvalidArgument, if two get one name.
StateMap StateOf(Module& module, const StateNames& names = {});
StateMap CloneState(Module& module, const StateNames& names = {});

struct LoadStateOptions {
  StateNames names = {};
  bool strict = true;  // what only one side has is an error, and nothing is loaded
  bool cast = false;   // takes floating values of another floating dtype, rounded
};

// What only one side has, in alphabetical order.
struct LoadStateResult {
  std::vector<std::string> missing = {};     // the module's names of what it has and the state lacks
  std::vector<std::string> unexpected = {};  // names outside of what the state has and the module lacks

  bool operator==(const LoadStateResult&) const = default;
};

// Takes over values of the same names, brought to the layouts that the module has; they may lie on its mesh or on another of the
// same ranks. All names, types and meshes are looked at before anything is changed. What other stages or parts of the model have
// is neither missing nor unexpected.
// Errors: InvalidArgument that lists names, if strict; for another shape, or another dtype unless `cast`; for a mesh of other
//         ranks; for a value that is undefined.
LoadStateResult LoadState(Module& module, const StateMap& state, const LoadStateOptions& options = {});
// The same out of a file, which is to have what all stages and parts have: each rank reads its pieces alone, and each is told
// of all that the file lacks. Of a checkpoint (dtensor/checkpoint/checkpoint.h) the optimizer's state, "optimizer.", is not
// unexpected; what the module itself calls so is loaded.
// Errors: also Unimplemented for what the module has and the file has in a dtype that Weft lacks.
LoadStateResult LoadWeights(SafetensorsReader& reader, Module& module, const LoadStateOptions& options = {});

// Writes the state, as SaveTensors writes. `parts`: null for those of the model that the module is of, whose ranks all call
// it, those too that have nothing of the module.
void SaveWeights(const std::string& path, Module& module, const StateNames& names = {},
                 const SafetensorsMetadata& metadata = {}, const ModelParts* parts = nullptr);

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_MODEL_STATE_H_

// What a run consists of, besides its code: one interface for all that is saved and loaded.

#ifndef WEFT_DTENSOR_CHECKPOINT_STATE_STATE_H_
#define WEFT_DTENSOR_CHECKPOINT_STATE_STATE_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/checkpoint/tensor_source.h"
#include "dtensor/dtensor.h"
#include "dtensor/nn/module.h"
#include "dtensor/optim/optimizer.h"

namespace weft {

// A tensor of the state: what is saved, and where loading writes.
struct StateTensor {
  std::string name;  // the same on every rank and mesh, and nobody else's
  DTensor tensor;    // of any layout but Partial
  // How loading gives back this rank's piece, of the tensor's dtype; null: it is written over the elements.
  std::function<void(const Tensor& piece)> set = nullptr;
};

using StateTexts = std::map<std::string, std::string>;

// Part of a run's state: a model's, an optimizer's, a program's own. Every rank has the same parts; of a pipeline each
// has the tensors of its stages.
class StatePart {
 public:
  virtual ~StatePart() = default;

  // The tensors that are on these ranks, as they lie now. Between steps.
  virtual std::vector<StateTensor> Tensors() = 0;

  // Small values beside them, alike on every rank: numbers, JSON.
  virtual StateTexts Texts() { return {}; }
  // Takes them over; `texts` are those of all parts.
  // Errors: DataLoss for what is missing or cannot be read.
  virtual void LoadTexts(const StateTexts& texts) { (void)texts; }

  // Whether Tensors are to be found as they are, with the types that they have. A part that adapts what it finds says
  // false, and overrides Load.
  virtual bool is_exact() const { return true; }
  // Whether a tensor that was saved is this part's, even if it has none of that name now: loading does not miss it then.
  virtual bool Knows(absl::string_view name) {
    (void)name;
    return false;
  }
  // Only of a part that is not exact: reads what it wants.
  virtual void Load(TensorSource& source) { (void)source; }
};

// All parts, by name and in the order in which they were added.
class State {
 public:
  State() = default;

  // Errors: InvalidArgument for an empty name, or one that is there.
  void Add(std::string name, std::shared_ptr<StatePart> part);

  const std::vector<std::pair<std::string, std::shared_ptr<StatePart>>>& parts() const { return parts_; }

 private:
  std::vector<std::pair<std::string, std::shared_ptr<StatePart>>> parts_;
};

// Parameters at rest and buffers that persist, under their paths. Tied parameters are one. The part views the model.
std::shared_ptr<StatePart> MakeModelState(Module& model);

// An optimizer's moments and count of updates under "optimizer.NAME". The part views it.
std::shared_ptr<StatePart> MakeOptimizerState(const Optimizer& optimizer);

// Any tensors, under the names that they come with: WeightAverage::State, a program's own.
std::shared_ptr<StatePart> MakeTensorState(
    std::function<std::vector<std::pair<std::string, DTensor>>()> tensors);

// Tensors that another start may lack or not want, as LossScale::State (under "loss_scale."), which a plan or a flag adds
// and drops. `prefix`: their names begin with it, and those of no other part. Loading takes those that were saved and leaves
// the others as they are; what else was saved under the prefix is left out. RestoreOptions::rename does not hold for them.
// Errors: of loading, InvalidArgument for a tensor of another type.
std::shared_ptr<StatePart> MakeOptionalTensorState(
    std::string prefix, std::function<std::vector<std::pair<std::string, DTensor>>()> tensors);

// One text: `load` is given what `save` gave. For what is no tensor: a schedule's state, a position in data.
std::shared_ptr<StatePart> MakeTextState(std::string name, std::function<std::string()> save,
                                         std::function<void(const std::string& text)> load);

// Texts that are saved and not loaded: what a program reads before it builds anything (ReadManifest).
std::shared_ptr<StatePart> MakeTextsState(std::function<StateTexts()> texts);

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_STATE_STATE_H_

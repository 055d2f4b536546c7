#ifndef WEFT_DTENSOR_NN_SEGMENTED_MODULE_H_
#define WEFT_DTENSOR_NN_SEGMENTED_MODULE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "dtensor/dtensor.h"
#include "dtensor/functions/loss.h"
#include "dtensor/nn/model_parts.h"
#include "dtensor/nn/model_stages.h"
#include "dtensor/nn/module.h"
#include "dtensor/nn/parameter.h"

namespace weft {

// A link of the chain that a model's forward is: the least that a stage of a pipeline runs.
struct Segment {
  // What has to be where the segment runs: modules, with all below them, and single parameters of modules around
  // them. What several segments name is at the stages of all of them, one value (a tied head). A slot that is tied to
  // another stands for that one.
  std::vector<Module*> modules = {};
  std::vector<Parameter*> parameters = {};
  // What it computes for one row of the batch, as a number that compares with that of the model's other segments
  // (products of numbers, say): by it stages are balanced.
  double cost = 0;
  // What it makes of what the segment before it has made; the first takes the model's input. It calls the modules and
  // parameters above alone.
  std::function<DTensors(const DTensors& inputs)> run;
};

// Segments from `begin` up to `end` that are recomputed as one: backward keeps what the first of them got.
struct RecomputedSegments {
  int begin = 0;
  int end = 0;
  ModuleRecompute how = {};
};

// A model whose forward is a chain of segments. It has no other forward, so that a pipeline, which runs parts of the
// chain on other ranks (parallel/styles/pipeline.h), computes what one device does.
//
//   class Net : public SegmentedModule {
//    ...
//    protected:
//     std::vector<Segment> MakeSegments() override {
//       return {{.modules = {&first}, .cost = 1, .run = [this](const DTensors& x) -> DTensors { return {first(x[0])}; }},
//               {.modules = {&second}, .cost = 1, .run = ...}};
//     }
//   };
class SegmentedModule : public Module {
 public:
  // In order; at least one.
  // Errors: InvalidArgument if there is none.
  const std::vector<Segment>& segments();

  // Runs the segments from `begin` up to `end`, within the call of the model that stands. Random draws of the model's
  // own path, and of modules that several segments have, are numbered by segment, so that each draws the same wherever it runs.
  // `first_made`: if given, what the first of them has made is left there, too.
  DTensors RunSegments(int begin, int end, DTensors inputs, DTensors* first_made = nullptr);

  // Recomputes segments together. RunSegments cuts groups at its ends, and, where what the first segment made is asked
  // for, behind it.
  // Errors: InvalidArgument for groups that are empty, lie outside the segments, or overlap with each other or with
  //         those that were added before.
  void add_recomputed_segments(std::vector<RecomputedSegments> groups);
  // Puts other groups in the place of those that there are, and returns these.
  std::vector<RecomputedSegments> ExchangeRecomputedSegments(std::vector<RecomputedSegments> groups) {
    return std::exchange(recomputed_, std::move(groups));
  }

  // The parameters that segments from `begin` up to `end` need, those that are here, each once.
  std::vector<Parameter*> ParametersOfSegments(int begin, int end);

  // What training makes small, of the last segment's outputs: the summed loss and the number of counted targets.
  virtual LossSum LossOf(const DTensors& outputs, const DTensor& targets) = 0;

  // The number of targets that LossOf will count, of the targets alone: a scalar, as CountTargets gives it, which it is
  // unless the model says otherwise.
  virtual DTensor CountOf(const DTensor& targets) { return CountTargets(targets); }

  // How the model is cut, if Parallelize has cut it.
  const std::optional<ModelStages>& stages() const { return stages_; }
  void set_stages(ModelStages stages) { stages_ = std::move(stages); }
  // Puts another cut, or none, in its place, and returns the one that there was.
  std::optional<ModelStages> ExchangeStages(std::optional<ModelStages> stages) {
    return std::exchange(stages_, std::move(stages));
  }

 protected:
  virtual std::vector<Segment> MakeSegments() = 0;

  DTensor Forward(const DTensor& x) final;

 private:
  // Those from `begin` up to `end`, in a call of the model that has come to draw number `begun`.
  DTensors RunChain(int begin, int end, uint64_t begun, DTensors inputs);
  // Makes shared_.
  void FindShared();
  // The group that segment `i` is in, if it is recomputed now; otherwise null.
  const RecomputedSegments* GroupOf(int i);

  std::vector<Segment> segments_;  // made at their first use
  // Of each: the modules that others have, too, whether they name them or one above.
  std::vector<std::vector<const Module*>> shared_;
  std::vector<RecomputedSegments> recomputed_;
  std::optional<ModelStages> stages_;
};

// How ranks have different parts of `model`, a root: its stages, or the parts of its mesh (Module::parts); null where each has
// all of it. What SaveTensors wants.
//
// Lifetime: until the model is spread anew.
const ModelParts* PartsOf(const Module& model);

}  // namespace weft

#endif  // WEFT_DTENSOR_NN_SEGMENTED_MODULE_H_

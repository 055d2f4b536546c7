#ifndef WEFT_DTENSOR_NN_MODULE_H_
#define WEFT_DTENSOR_NN_MODULE_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "dtensor/context/hook_list.h"
#include "dtensor/context/mesh_context.h"
#include "dtensor/dtensor.h"
#include "dtensor/nn/model_parts.h"
#include "dtensor/nn/module_buffer.h"
#include "dtensor/nn/parameter.h"
#include "dtensor/tape/kept_results.h"

namespace weft {

// Placements that a parallel style fixes where a tensor crosses a module's border, along some axes. The
// gradient's, where not given, follow Redistribute's rule.
struct BorderPin {
  int axis = 0;
  Placement value;
  std::optional<Placement> gradient;
  int tensor =
      -1;  // of several inputs or outputs the number of the one that is pinned; -1: all are but scalars

  // Whether it pins tensor `index`, of so many dims.
  bool Pins(int index, int ndim) const { return tensor < 0 ? ndim > 0 : tensor == index; }
  bool operator==(const BorderPin&) const = default;
};

struct ModuleBorder {
  std::vector<BorderPin> input;
  std::vector<BorderPin> output;
  // Floating tensors are cast to these as they cross; not at all if not given.
  std::optional<DType> input_dtype = std::nullopt;
  std::optional<DType> output_dtype = std::nullopt;

  bool operator==(const ModuleBorder&) const = default;
};

// On which ranks of a model a module lies.
enum class ModulePlace : uint8_t {
  kAround,  // those of the module around it
  kWhole,   // all, where modules below it lie on parts: what enters and what leaves is brought there
  kPart,  // a part of them: what enters is brought there; other ranks do not run it, what leaves is absent on them
};

// That what a module computes in between is computed again in backward (dtensor/autograd/recompute.h).
struct ModuleRecompute {
  KeptOps keep = KeptOps();     // whose results stay
  bool last_microbatch = true;  // false: not of what NoSync does not hold back, whose backward comes at once
};

// Is told what becomes of a module's calls.
class ModuleObserver {
 public:
  virtual ~ModuleObserver() = default;
  // A call of the module has ended, whether well or by an exception.
  virtual void OnLeave() noexcept = 0;
};

// A node of the model tree. Its constructor registers children and parameters by name, as specs that allocate
// nothing:
//
//   class Mlp : public Module {
//    public:
//     Mlp(Module* parent, std::string name, int64_t d)
//         : Module(parent, std::move(name)), up(this, "up", d, 4 * d), down(this, "down", 4 * d, d) {}
//     Linear up, down;
//    protected:
//     DTensor Forward(const DTensor& x) override { return down(Gelu(up(x))); }
//   };
//
// Model code is a single-device program: it cannot mention parallelism. Modules do not move.
class Module {
 public:
  Module() = default;  // a root
  // A child of `parent`, under `name` (letters, digits, '_'; dots make it look nested: "blocks.0").
  // Errors: InvalidArgument for a name the parent already has.
  Module(Module* parent, std::string name);
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // Calls the module: enters its path, pins the input's layout, runs Forward, pins the output's.
  // Modules of another signature have an operator() of their own, written with CallModule or ModuleCall.
  DTensor operator()(const DTensor& x);

  std::string path() const;  // "" for the root, "blocks.0.mlp"

  // A root's name, for programs of several models: first values, random bits and what the ledger says of each are those
  // of a child of that name, "teacher.blocks.0.mlp", so that two models of one shape do not draw the same. Paths, and
  // with them plans and checkpoints, stay as they are.
  // Errors: InvalidArgument for a module that is no root, FailedPrecondition for one that has values.
  void set_name(std::string name);
  // The path behind the root's name.
  std::string full_path() const;
  const std::vector<Module*>& children() const { return children_; }
  const std::vector<Parameter*>& parameters() const { return parameters_; }  // its own
  const std::vector<ModuleBuffer*>& buffers() const { return buffers_; }     // likewise
  const std::vector<Parameter*>& tied() const { return tied_; }  // slots that are other names of parameters

  // The module that is nobody's child, above this one.
  Module& root() { return parent_ == nullptr ? *this : parent_->root(); }

  // This module and all below it, in order of registration; their parameters that are here, and all of them, those
  // too that other ranks alone have (Parameter::is_here).
  std::vector<Module*> AllModules();
  std::vector<Parameter*> AllParameters();
  std::vector<Parameter*> RegisteredParameters();
  // Those that are here and are trained (Parameter::trainable): what to give an optimizer that shall keep no state for
  // the others.
  std::vector<Parameter*> TrainableParameters();
  // What slots of this module and below are other names of (Parameter::TieTo), each once.
  std::vector<Parameter*> TiedParameters();
  // The same of buffers: those that are here, and all.
  std::vector<ModuleBuffer*> AllBuffers();
  std::vector<ModuleBuffer*> RegisteredBuffers();

  // This module and all below it do as in training, or as in use: what Dropout and BatchNorm go by, as
  // RankState::training. A module goes by its own, whatever the one around it is set to; an EvaluationGuard goes before
  // all. Set it alike on every rank.
  void Train() { SetTraining(true); }
  void Eval() { SetTraining(false); }
  bool training() const { return training_; }

  // All parameters of this module and below, and those that slots there are other names of (tied): Parameter::set_trainable.
  void set_trainable(bool trainable);

  // What Parallelize decided for the border, and the context that Materialize bound.
  const ModuleBorder& border() const { return placed_.border; }
  void set_border(ModuleBorder border) { placed_.border = std::move(border); }
  const IntrusivePtr<MeshContext>& context() const;  // Errors: FailedPrecondition before Materialize
  void Bind(const IntrusivePtr<MeshContext>& context);
  // Where it lies in a model that lies on parts of its mesh.
  ModulePlace place() const { return placed_.place; }
  void set_place(ModulePlace place) { placed_.place = place; }
  // Of a root whose modules lie on parts of its mesh: to save it (SaveTensors); null otherwise.
  const ModelParts* parts() const { return placed_.parts ? &*placed_.parts : nullptr; }
  void set_parts(std::optional<ModelParts> parts) { placed_.parts = std::move(parts); }
  void set_observer(std::shared_ptr<ModuleObserver> observer) { placed_.observer = std::move(observer); }
  // Calls are recomputed in backward; null: not.
  // Errors: of calls from then on: FailedPrecondition for a module that computes in its operator(), or in a function that
  //         it gives CallModule: backward would outlive both. Forward and ForwardTensors may be recomputed.
  void set_recompute(std::shared_ptr<const ModuleRecompute> recompute) {
    placed_.recompute = std::move(recompute);
  }

  // Whether what backward will read of calls of this module, those of modules below among them, is kept in the ranks'
  // second memory in between (SaveOnHostGuard), or on the device; nothing: as around it.
  void set_saves_on_host(std::optional<bool> on_host) { placed_.saves_on_host = on_host; }
  // Whether it is of a call that begins now. What is computed again in backward is as around it: it is read at once.
  bool SavesOnHost() const;

  // What Materialize and Parallelize have made of the module: all but what its constructor and its user said.
  struct Placed {
    ModuleBorder border = {};
    IntrusivePtr<MeshContext> context = nullptr;
    int path_id = 0;
    ModulePlace place = ModulePlace::kAround;
    std::optional<ModelParts> parts = std::nullopt;
    std::shared_ptr<ModuleObserver> observer = nullptr;  // may be null
    std::shared_ptr<const ModuleRecompute> recompute = nullptr;
    std::optional<bool> saves_on_host = std::nullopt;
  };
  // Puts `placed` in its place, and returns what was there: as Parameter::ExchangePlaced.
  Placed ExchangePlaced(Placed placed) { return std::exchange(placed_, std::move(placed)); }

  // `hook` sees each tensor that a call of this module takes, or gives, and returns what goes on in its place; an undefined
  // tensor for the tensor as it is. What it returns is pinned as the module's border says. Of a module with several
  // inputs each is seen by itself. In the order in which they were hung; every rank hangs the same.
  using ForwardHook = std::function<DTensor(Module& module, const DTensor& x)>;
  HookHandle AddBeforeForward(ForwardHook hook);
  HookHandle AddAfterForward(ForwardHook hook);

 protected:
  // What the module computes.
  // Errors: Unimplemented for modules of another signature.
  virtual DTensor Forward(const DTensor& x);
  // The same of a module of several inputs or outputs: what CallModule calls, where it is given no function. Inputs as
  // CallModule's functions get them.
  // Errors: Unimplemented for modules that have none.
  virtual DTensors ForwardTensors(const DTensors& inputs);

  // `run`, which computes with this module, as a function that may outlive it: for Recompute.
  // Errors: of its calls from then on: FailedPrecondition naming the module.
  std::function<DTensors(const DTensors&)> WhileItLives(std::function<DTensors(const DTensors&)> run) const;

 private:
  friend class Parameter;
  friend class ModuleBuffer;
  friend class ModuleCall;
  friend DTensors CallModule(Module& module, const DTensors& inputs, int num_outputs);
  friend DTensors CallModule(Module& module, const DTensors& inputs, int num_outputs,
                             absl::FunctionRef<DTensors(const DTensors& inputs)> forward);

  void AppendModules(std::vector<Module*>* modules);
  DTensor Run(const DTensor& x);
  DTensor RunWhereItLies(const DTensor& x);
  DTensors RunTensorsWhereTheyLie(const DTensors& inputs, int num_outputs);
  // Of a module on a part: brings the inputs there, and calls `run` on its ranks.
  DTensors RunOnPart(const DTensors& inputs, int num_outputs,
                     absl::FunctionRef<DTensors(const DTensors&)> run);
  // A tensor of another mesh on the module's, as the pins of tensor `index` say, replicated otherwise.
  DTensor Brought(const DTensor& x, const std::vector<BorderPin>& pins, const std::optional<DType>& dtype,
                  int index) const;
  void SetTraining(bool training);

  Module* parent_ = nullptr;
  std::string name_;
  std::vector<Module*> children_;
  std::vector<Parameter*> parameters_;
  std::vector<Parameter*> tied_;                        // slots that are other names of parameters
  absl::flat_hash_set<absl::string_view> child_names_;  // views of what the children and parameters hold
  std::vector<ModuleBuffer*> buffers_;
  absl::flat_hash_set<absl::string_view> parameter_names_;  // and those of buffers
  Placed placed_;
  const std::shared_ptr<bool> life_ = std::make_shared<bool>();  // ends with the module
  HookList<DTensor(Module&, const DTensor&)> before_hooks_, after_hooks_;
  std::string root_name_;
  bool training_ = true;
};

// One call of a module, while it lives: what every operator() of a module does around its own work.
class ModuleCall {
 public:
  // Errors: FailedPrecondition, naming the module, before it is materialized; and if it lies on a part of the model's
  //         ranks, since the others cannot leave its body out: that is for CallModule.
  explicit ModuleCall(Module& module) : ModuleCall(module, Body::kHere) {}
  ~ModuleCall() {
    if (module_.placed_.observer != nullptr) module_.placed_.observer->OnLeave();
  }
  ModuleCall(const ModuleCall&) = delete;
  ModuleCall& operator=(const ModuleCall&) = delete;
  // Of a module with several inputs, or outputs, `index` says which: pins may be of one of them (BorderPin::tensor).
  DTensor Input(const DTensor& x, int index = 0) const;
  DTensor Output(const DTensor& y, int index = 0) const;
  // All of them; those that are undefined stay so.
  DTensors Inputs(const DTensors& inputs) const;
  DTensors Outputs(const DTensors& outputs) const;

 private:
  friend class Module;
  friend DTensors CallModule(Module& module, const DTensors& inputs, int num_outputs,
                             absl::FunctionRef<DTensors(const DTensors& inputs)> forward);

  // What the module computes: what follows the call; a function; Forward or ForwardTensors, which may be recomputed.
  enum class Body : uint8_t { kHere, kFunction, kForward };
  ModuleCall(Module& module, Body body);

  Module& module_;
  PathGuard path_;
  ModuleTrainingGuard training_;
  SaveOnHostGuard saves_on_host_;
  MemoryKindGuard kind_;
  RootCallScope root_;
};

// A call of a module with any inputs and outputs, whose operator() is this call:
//
//   DTensor operator()(const DTensor& image, const DTensor& cloud) { return CallModule(*this, {image, cloud})[0]; }
//  protected:
//   DTensors ForwardTensors(const DTensors& x) override { return {head(Relu(Add(x[0], x[1])))}; }
//
// As with ModuleCall, ForwardTensors gets the inputs as the module's border has them, in their order, and what it returns
// leaves by the border. Where a plan places the module on some of the ranks (On), the others do not run it.
// Inputs may be undefined, and stay so; outputs, too, but those of a module that lies on some of the ranks.
// Errors: InvalidArgument for another number of outputs.
DTensors CallModule(Module& module, const DTensors& inputs, int num_outputs = 1);
// The same with a function in place of ForwardTensors, which may read more than tensors. Such a call is not recomputed.
DTensors CallModule(Module& module, const DTensors& inputs, int num_outputs,
                    absl::FunctionRef<DTensors(const DTensors& inputs)> forward);
DTensor CallModule(Module& module, const DTensors& inputs,
                   absl::FunctionRef<DTensor(const DTensors& inputs)> forward);

// Whether a call of what is recomputed so is recomputed now.
bool Recomputes(const RankState& state, const ModuleRecompute& recompute);

// Errors: DataLoss that starts with `what` and names the first element of this rank's piece that is not
//         finite.
void CheckFinite(const DTensor& x, absl::string_view what);

struct MaterializeOptions {
  DType dtype = DType::kF32;                          // of parameters at rest, gradients and optimizer state
  std::optional<DType> compute_dtype = std::nullopt;  // of forward and backward; `dtype` if not given
};

// Binds a model to `context` and gives every parameter and buffer its first value, replicated over the mesh, from the
// rank state's seed.
// Errors: FailedPrecondition that names a parameter or buffer that has a value already, or is on other ranks; nothing has
//         changed then. A model without any may be bound again.
void Materialize(Module& root, const IntrusivePtr<MeshContext>& context,
                 const MaterializeOptions& options = {});

}  // namespace weft

#endif  // WEFT_DTENSOR_NN_MODULE_H_

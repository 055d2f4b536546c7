// A named tensor of a module that is not trained.

#ifndef WEFT_DTENSOR_NN_MODULE_BUFFER_H_
#define WEFT_DTENSOR_NN_MODULE_BUFFER_H_

#include <optional>
#include <string>
#include <utility>

#include "dtensor/dtensor.h"
#include "dtensor/nn/initializer.h"
#include "dtensor/nn/parameter.h"
#include "mesh/layout.h"
#include "runtime/tensor/shape.h"

namespace weft {

class Module;

// Everything about a buffer that is known before it has elements.
struct BufferSpec {
  Shape shape;
  Initializer initializer = {};
  // Any dtype that the initializer makes; not given: that of parameters at rest, but no narrower than f32.
  std::optional<DType> dtype = std::nullopt;
  // Dims that tensor-parallel styles of the module may split, as a parameter's.
  ShardDims shard_dims = {};
  bool persistent = true;  // part of checkpoints and of a model's state

  bool operator==(const BufferSpec&) const = default;
};

// A named slot for a tensor that belongs to a module and is not trained: running statistics, a mask, a table.
// Registered by its module's constructor as a spec; Materialize or Parallelize gives it a layout and elements.
// Replicated, unless a style of its module splits the dims that it declares; no data-parallel style splits it. Of a
// module that several stages of a pipeline have, each has its own. Does not move. One that ends before its module is no
// longer listed there.
class ModuleBuffer {
 public:
  // Registers with `owner`.
  // Errors: InvalidArgument for a name of a parameter or buffer that the owner already has.
  ModuleBuffer(Module* owner, std::string name, BufferSpec spec);
  ~ModuleBuffer();
  ModuleBuffer(const ModuleBuffer&) = delete;
  ModuleBuffer& operator=(const ModuleBuffer&) = delete;

  const std::string& name() const { return name_; }
  std::string path() const;       // "layer1.bn.running_mean"
  std::string full_path() const;  // behind the root's name (Module::set_name)
  const BufferSpec& spec() const { return spec_; }
  bool materialized() const { return value_.defined(); }

  // Whether this rank has it: false for what belongs to another stage of a pipeline, or to a module on other ranks (On), and
  // stays a spec.
  bool is_here() const { return is_here_; }
  void set_is_here(bool is_here) { is_here_ = is_here; }

  // The value, without history.
  // Errors: FailedPrecondition before it is materialized.
  const DTensor& Value() const;

  // Another value, of the same type, on the slot's mesh or on another of the same ranks, brought to the slot's context and
  // layout; whoever holds the one before keeps it as it was. Of a parameter's value it is a copy, which no update changes.
  // Cost:   as MovedTo (dtensor/mesh_transfer.h).
  // Errors: InvalidArgument if the type differs, or for a mesh of other ranks.
  void Set(const DTensor& value);

  // Gives the slot its layout and first value, of the spec's dtype, or, where that is not given, of `dtype`.
  void Materialize(const IntrusivePtr<MeshContext>& context, DType dtype, const Layout& layout);
  // Another value of any kind, or none: a slot without one is a spec, as before that. Returns the one that was there.
  DTensor ExchangeValue(DTensor value) { return std::exchange(value_, std::move(value)); }
  // What that is where parameters rest in `dtype`: statistics in bf16 would stand still.
  static DType DefaultDType(DType dtype) {
    return ItemSize(dtype) < ItemSize(DType::kF32) ? DType::kF32 : dtype;
  }

 private:
  friend class Module;

  Module* owner_;
  std::string name_;
  BufferSpec spec_;
  DTensor value_;
  bool is_here_ = true;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_NN_MODULE_BUFFER_H_

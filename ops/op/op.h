#ifndef WEFT_OPS_OP_OP_H_
#define WEFT_OPS_OP_OP_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ops/op/attribute_hash.h"
#include "ops/op/emitter.h"
#include "ops/op/kernel_call.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// For ops without attributes, or without run-time scalars.
struct NoAttributes {
  bool operator==(const NoAttributes&) const = default;
};
struct NoScalars {};

// How a test fills one operand: uniform in [low, high), rounded down for integers. Away from points where the
// op is not smooth, since gradients are checked by central differences.
struct SampleOperand {
  TensorType type;
  double low = -1;
  double high = 1;
};

// One small call of an op, for tests that run over everything registered.
template <class A = NoAttributes, class R = NoScalars>
struct Sample {
  std::vector<SampleOperand> operands;
  A attributes = {};
  R scalars = {};
};

// A Sample whose attributes' types have been erased.
struct OpSample {
  std::vector<SampleOperand> operands;
  std::shared_ptr<const void> attributes;
  std::shared_ptr<const void> scalars;
};

// What an op is, independent of devices and layouts, with the types of its attributes erased. Its identity is
// its address: ops are namespace-scope constants, initialised at compile time.
class OpDef {
 public:
  OpDef(const OpDef&) = delete;
  OpDef& operator=(const OpDef&) = delete;

  const char* name() const { return texts_.name; }
  const char* operands() const { return texts_.operands; }
  const char* outputs() const { return texts_.outputs; }
  const char* linear() const { return texts_.linear; }
  const char* in_place() const { return texts_.in_place; }
  const char* saves() const { return texts_.saves; }
  bool is_view() const { return texts_.is_view; }
  bool is_remade() const { return texts_.is_remade; }

  // The number of an operand by its name, or outputs.size() further on for an output's: operands first, then
  // outputs, in the order of `operands` and `outputs`. -1 if there is none. Not for ops with "x..." operands.
  int FindValue(absl::string_view value_name) const;

  // The groups of `linear` as operand numbers, for a call of `num_operands` ("{x...}": all of them).
  // Errors: Internal for text that does not parse or names what is no operand.
  std::vector<std::vector<int>> LinearGroups(int num_operands) const;

  virtual TensorTypes Infer(absl::Span<const TensorType> operands, const void* attributes) const = 0;
  virtual std::string Rule(absl::Span<const TensorType> operands, const void* attributes) const = 0;
  virtual bool has_backward() const = 0;
  virtual void Backward(GradContextBase& context) const = 0;
  virtual bool has_decomposition() const = 0;
  virtual Values Decompose(Emitter& emitter, absl::Span<const Value> operands, const void* attributes,
                           const void* scalars) const = 0;
  virtual void Invoke(ErasedKernel kernel, const KernelCallBase& call) const = 0;

  // Static attributes as part of a cache key, and copies of both kinds for the tape.
  virtual size_t HashAttributes(const void* attributes) const = 0;
  virtual bool EqualAttributes(const void* a, const void* b) const = 0;
  virtual std::shared_ptr<const void> CloneAttributes(const void* attributes) const = 0;
  virtual std::shared_ptr<const void> CloneScalars(const void* scalars) const = 0;
  // How many bytes hold the scalars, copied as they are; -1 if only CloneScalars can copy them.
  virtual int scalars_size() const = 0;

  virtual std::vector<OpSample> Samples() const = 0;

 protected:
  struct Texts {
    const char* name;
    const char* operands;
    const char* outputs;
    const char* linear;
    const char* in_place;
    const char* saves;
    bool is_view;
    bool is_remade;
  };
  constexpr explicit OpDef(const Texts& texts) : texts_(texts) {}
  ~OpDef() = default;

 private:
  Texts texts_;
};

// The declaration of an op: everything about it but its kernels, in one place. Write it with designated
// initialisers.
//
// A is the struct of *static* attributes: part of the cache key, so it has ==, and its fields are hashed one
// by one (HashAttributesOf). R is the struct of run-time scalars (learning rate, random key): never part of a
// key.
template <class A = NoAttributes, class R = NoScalars>
struct OpFunctions {
  const char* name;
  // Operand and output names, blank-separated; "x..." alone stands for any number of one kind.
  const char* operands;
  const char* outputs = "y";

  // Types of the outputs. Called before anything else, with as many operands as `operands` names (any number
  // for "x...").
  // Errors: InvalidArgument that starts with the op's name and says what was expected.
  TensorTypes (*infer)(absl::Span<const TensorType> operands, const A& attributes);

  // How the op may be split, as text over factors: see ops/sharding/sharding_rule.h.
  std::string (*rule)(absl::Span<const TensorType> operands, const A& attributes);

  // Groups of operands in which the op is jointly linear: "{x}{w}" for a product, "{a b}" for a sum, "{dy}".
  // Partial (sum, avg) operands pass through to every output that is made of them only where they are exactly
  // one group.
  const char* linear = "";

  // Operands that the kernel overwrites; they are then the op's outputs, in this order. Optimizer updates
  // only.
  const char* in_place = "";

  // The kernel returns views of its first operand instead of writing to new outputs.
  bool is_view = false;

  // What the op, of one operand, makes of a parameter's copy the tape does not keep but makes again, as it does the copy and
  // its views.
  bool is_remade = false;

  // All the operands and outputs that `backward` reads. The tape keeps nothing else.
  const char* saves = "";

  // Emits the gradients, by ops, so that backward shards itself. Null: not differentiable.
  void (*backward)(GradContext<A, R>& context) = nullptr;

  // The same result by ops that allow the rule's whole factors (`w!`) to be split: statistics with Partial
  // outputs, then a finishing op. Null: such a factor is gathered first.
  Values (*decomposition)(Emitter& emitter, absl::Span<const Value> operands, const A& attributes,
                          const R& scalars) = nullptr;

  // Small calls for the tests that run over every op.
  std::vector<Sample<A, R>> (*samples)() = nullptr;
};

// An op with its attribute types: a constant, e.g.
//   constinit const Op<ContractAttributes> kContract = {{.name = "contract", .operands = "x w", ...}};
template <class A = NoAttributes, class R = NoScalars>
class Op final : public OpDef {
 public:
  using Attributes = A;
  using Scalars = R;

  constexpr Op(const OpFunctions<A, R>& f)  // NOLINT: implicit, so that the declaration reads as data
      : OpDef({.name = f.name,
               .operands = f.operands,
               .outputs = f.outputs,
               .linear = f.linear,
               .in_place = f.in_place,
               .saves = f.saves,
               .is_view = f.is_view,
               .is_remade = f.is_remade}),
        functions_(f) {}

  TensorTypes Infer(absl::Span<const TensorType> operands, const void* attributes) const override {
    return functions_.infer(operands, *static_cast<const A*>(attributes));
  }
  std::string Rule(absl::Span<const TensorType> operands, const void* attributes) const override {
    return functions_.rule(operands, *static_cast<const A*>(attributes));
  }
  bool has_backward() const override { return functions_.backward != nullptr; }
  void Backward(GradContextBase& context) const override {
    GradContext<A, R> typed(context);
    functions_.backward(typed);
  }
  bool has_decomposition() const override { return functions_.decomposition != nullptr; }
  Values Decompose(Emitter& emitter, absl::Span<const Value> operands, const void* attributes,
                   const void* scalars) const override {
    return functions_.decomposition(emitter, operands, *static_cast<const A*>(attributes),
                                    *static_cast<const R*>(scalars));
  }
  void Invoke(ErasedKernel kernel, const KernelCallBase& call) const override {
    reinterpret_cast<void (*)(const KernelCall<A, R>&)>(kernel)(KernelCall<A, R>(call));
  }
  size_t HashAttributes(const void* attributes) const override {
    return HashAttributesOf(*static_cast<const A*>(attributes));
  }
  bool EqualAttributes(const void* a, const void* b) const override {
    return *static_cast<const A*>(a) == *static_cast<const A*>(b);
  }
  std::shared_ptr<const void> CloneAttributes(const void* attributes) const override {
    return std::make_shared<A>(*static_cast<const A*>(attributes));
  }
  std::shared_ptr<const void> CloneScalars(const void* scalars) const override {
    return std::make_shared<R>(*static_cast<const R*>(scalars));
  }
  int scalars_size() const override {
    if constexpr (!std::is_trivially_copyable_v<R>) return -1;
    return std::is_empty_v<R> ? 0 : static_cast<int>(sizeof(R));
  }
  std::vector<OpSample> Samples() const override {
    std::vector<OpSample> result;
    if (functions_.samples == nullptr) return result;
    for (const Sample<A, R>& sample : functions_.samples()) {
      result.push_back({sample.operands, CloneAttributes(&sample.attributes), CloneScalars(&sample.scalars)});
    }
    return result;
  }

 private:
  OpFunctions<A, R> functions_;
};

}  // namespace weft

#endif  // WEFT_OPS_OP_OP_H_

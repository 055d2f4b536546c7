#include "dtensor/nn/module.h"

#include <cmath>
#include <optional>
#include <utility>

#include "dtensor/autograd/backward.h"
#include "dtensor/autograd/recompute.h"
#include "dtensor/functions.h"
#include "dtensor/inspect/comm_report.h"
#include "gmock/gmock.h"
#include "runtime/tensor/copy.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::ElementsAre;

// y = dropout(x) * scale; asks for randomness twice, so that calls are numbered.
class Leaf : public Module {
 public:
  Leaf(Module* parent, std::string name) : Module(parent, std::move(name)) {}
  Parameter scale{this, "scale", {.shape = {}, .initializer = Initializer::Constant(2)}};

 protected:
  DTensor Forward(const DTensor& x) override { return (Dropout(x, 0.5) + Dropout(x, 0.5)) * scale.Value(); }
};

class Block : public Module {
 public:
  Block(Module* parent, std::string name) : Module(parent, std::move(name)) {}
  Leaf up{this, "up"};
  Parameter shift{this, "shift", {.shape = {}}};
  Leaf down{this, "down"};

 protected:
  DTensor Forward(const DTensor& x) override { return down(up(x)) + shift.Value(); }
};

class Tree : public Module {
 public:
  Block first{this, "blocks.0"};
  Parameter bias{this, "bias", {.shape = {}}};
  Block second{this, "blocks.1"};

 protected:
  DTensor Forward(const DTensor& x) override { return second(first(x)) + bias.Value(); }
};

TEST(ModuleTest, PathsInOrderOfRegistration) {
  Tree tree;
  std::vector<std::string> modules, parameters;
  for (const Module* module : tree.AllModules()) modules.push_back(module->path());
  for (const Parameter* parameter : tree.AllParameters()) parameters.push_back(parameter->path());
  EXPECT_THAT(modules, ElementsAre("", "blocks.0", "blocks.0.up", "blocks.0.down", "blocks.1", "blocks.1.up",
                                   "blocks.1.down"));
  EXPECT_THAT(parameters, ElementsAre("bias", "blocks.0.shift", "blocks.0.up.scale", "blocks.0.down.scale",
                                      "blocks.1.shift", "blocks.1.up.scale", "blocks.1.down.scale"));
  EXPECT_THAT(tree.children(), ElementsAre(&tree.first, &tree.second));
  EXPECT_THAT(tree.first.parameters(), ElementsAre(&tree.first.shift));
}

TEST(ModuleTest, Misuse) {
  Tree tree;
  EXPECT_EQ(ErrorOf([&] { Leaf(&tree, "blocks.0"); }), "module '' already has a child 'blocks.0'");
  EXPECT_EQ(ErrorOf([&] { Leaf(&tree.first, "up"); }), "module 'blocks.0' already has a child 'up'");
  EXPECT_EQ(ErrorOf([&] { Leaf(nullptr, "up"); }), "a child module needs a parent and a name");
  EXPECT_EQ(ErrorOf([&] { Leaf(&tree, ""); }), "a child module needs a parent and a name");
  EXPECT_EQ(tree.children().size(), 2u);  // what failed is not registered
  OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Full(context, DType::kF32, {2}, 1);
    EXPECT_EQ(ErrorOf([&] { tree(x); }),
              "module '' has no values yet: call Materialize or Parallelize on the model first");
    EXPECT_EQ(ErrorOf([&] { tree.second.up(x); }),
              "module 'blocks.1.up' has no values yet: call Materialize or Parallelize on the model first");
    Materialize(tree, context);
    EXPECT_EQ(ErrorOf([&] { Materialize(tree, context); }), "parameter 'bias' already has a value");
    // Nothing has changed by then. What has no values may be bound again.
    const auto other = Bind(context, DeviceMesh());
    EXPECT_EQ(ErrorOf([&] { Materialize(tree, other); }), "parameter 'bias' already has a value");
    EXPECT_EQ(tree.context(), context);
    Module plain;
    Materialize(plain, other);
    Materialize(plain, context);
    EXPECT_EQ(plain.context(), context);
    EXPECT_EQ(ErrorOf([&] { plain(x); }),
              "module '' does not take a single tensor: call it by its own signature");
    EXPECT_EQ(ErrorOf([&] {
                CallModule(plain, {x, x});
              }),
              "module '' has no ForwardTensors, which CallModule calls where it is given no function");
  });
}

// A module whose constructor fails once its children stand.
class Broken : public Module {
 public:
  explicit Broken(Module* parent) : Module(parent, "broken") { ThrowInvalidArgument("no such width"); }
  Leaf child{this, "child"};
};

TEST(ModuleTest, AConstructorThatThrowsLeavesNoTrace) {
  Module root;
  EXPECT_EQ(ErrorOf([&] { Broken broken(&root); }), "no such width");
  EXPECT_TRUE(root.children().empty());
  {
    Leaf leaf(&root, "broken");  // the name is free again
    EXPECT_THAT(root.children(), ElementsAre(&leaf));
  }
  EXPECT_TRUE(root.AllParameters().empty());
}

class Optional : public Module {
 public:
  std::optional<Parameter> bias{std::in_place, this, "bias", ParameterSpec{.shape = {2}}};
  Parameter weight{this, "weight", {.shape = {2}}};
  std::optional<ModuleBuffer> mean{std::in_place, this, "mean", BufferSpec{.shape = {2}}};
};

// As PyTorch's `layer.bias = None`.
TEST(ModuleTest, ASlotThatEndsIsNoLongerListed) {
  Optional module;
  module.bias.reset();
  module.mean.reset();
  EXPECT_THAT(module.AllParameters(), ElementsAre(&module.weight));
  EXPECT_TRUE(module.AllBuffers().empty());
  module.bias.emplace(&module, "mean", ParameterSpec{.shape = {2}});  // both names are free again
  module.mean.emplace(&module, "bias", BufferSpec{.shape = {2}});
  EXPECT_THAT(module.AllParameters(), ElementsAre(&module.weight, &*module.bias));
  EXPECT_THAT(module.AllBuffers(), ElementsAre(&*module.mean));
  module.bias->TieTo(module.weight);
  module.bias.reset();
  EXPECT_TRUE(module.tied().empty());
}

TEST(ModuleTest, MaterializeReplicatesInTheGivenDTypes) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    Tree tree;
    Materialize(tree, context, {.dtype = DType::kF64, .compute_dtype = DType::kBF16});
    for (const Parameter* parameter : tree.AllParameters()) {
      EXPECT_EQ(parameter->at_rest().ToString(), "f64[] []");
      EXPECT_EQ(parameter->Value().dtype(), DType::kBF16);
    }
    EXPECT_EQ(tree.first.up.scale.at_rest().Item(), 2);
    EXPECT_EQ(tree.bias.at_rest().Item(), 0);
    EXPECT_EQ(tree.context(), context);
  });
}

// Bits depend on the module's path and the call's number in this forward; the root's call starts the numbers
// anew.
TEST(ModuleTest, RandomnessFollowsPathsAndCalls) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Tree tree;
    Materialize(tree, context);
    const DTensor x = Full(context, DType::kF32, {64}, 1);
    const Tensor once = tree(x).ToLocal();
    EXPECT_TRUE(SameBits(tree(x).ToLocal(), once));
    context->state().set_step(1);
    EXPECT_FALSE(SameBits(tree(x).ToLocal(), once));
    context->state().set_step(0);
    context->state().ResetCallNumbers();
    const Tensor first = tree.first.up(x).ToLocal();
    EXPECT_FALSE(SameBits(tree.second.up(x).ToLocal(), first));
    EXPECT_FALSE(SameBits(tree.first.up(x).ToLocal(), first));  // its second call
    context->state().ResetCallNumbers();
    EXPECT_TRUE(SameBits(tree.first.up(x).ToLocal(), first));
    EXPECT_EQ(context->state().path_id(), 0);
  });
}

// As a frozen teacher's, which is no child of the student. x is 1 and the student linear: its gradient is what it makes.
TEST(ModuleTest, ACallOfAnotherRootLeavesTheNumbersOfTheOneThatStands) {
  class Student : public Module {
   public:
    explicit Student(Module& teacher) : teacher_(teacher) {}
    bool recomputes = false;
    DTensors drawn;

   protected:
    DTensor Forward(const DTensor& x) override {
      const auto draw = [this](const DTensors& inputs) -> DTensors {
        const DTensor a = Dropout(inputs[0], 0.5);
        teacher_(inputs[0]);
        const DTensor b = Dropout(inputs[0], 0.5);
        drawn = {a.Detach(), b.Detach()};
        return {a + b};
      };
      return (recomputes ? Recompute(draw, {x}) : draw({x}))[0];
    }

   private:
    Module& teacher_;
  };
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Tree teacher;
    Student student(teacher);
    Materialize(teacher, context);
    Materialize(student, context);
    teacher.set_trainable(false);
    Tensor first;
    for (const bool recomputes : {false, true}) {
      student.recomputes = recomputes;
      const DTensor x = Full(context, DType::kF32, {64}, 1).RequiresGrad();
      const DTensor y = student(x);
      EXPECT_FALSE(SameBits(student.drawn[0].ToLocal(), student.drawn[1].ToLocal()));
      if (!first.defined()) first = y.ToLocal();
      EXPECT_TRUE(SameBits(y.ToLocal(), first));  // the student's own call starts the numbers anew
      Backward(Sum(y));
      EXPECT_TRUE(SameBits(x.grad().ToLocal(), y.ToLocal())) << recomputes;
    }
  });
}

// A module goes by its own mode; an EvaluationGuard goes before all.
TEST(ModuleTest, TrainingAndEvaluationByModule) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    Tree tree;
    Materialize(tree, context);
    const DTensor x = Full(context, DType::kF32, {64}, 1);
    const Tensor plain = Full(context, DType::kF32, {64}, 4).ToLocal();  // 2 (x + x)
    const auto drops = [&](Leaf& leaf) { return !SameBits(leaf(x).ToLocal(), plain); };
    EXPECT_TRUE(drops(tree.first.up));
    tree.first.Eval();
    EXPECT_FALSE(tree.first.training() || tree.first.down.training());
    EXPECT_TRUE(tree.training() && tree.second.up.training());
    EXPECT_FALSE(drops(tree.first.up));
    EXPECT_TRUE(drops(tree.second.up));
    // A child that trains within a module that does not.
    const Tensor evaluated = tree.first(x).ToLocal();
    tree.first.down.Train();
    EXPECT_TRUE(drops(tree.first.down));
    EXPECT_FALSE(SameBits(tree.first(x).ToLocal(), evaluated));
    EXPECT_TRUE(context->state().training());
    {
      const EvaluationGuard guard(context->state());
      EXPECT_FALSE(drops(tree.first.down));
      EXPECT_TRUE(SameBits(tree.first(x).ToLocal(), evaluated));
    }
    tree.Eval();
    EXPECT_FALSE(drops(tree.second.up));
    tree.Train();
    EXPECT_TRUE(drops(tree.first.up));
  });
}

// A forward that is run again is run as it was, in the module's mode.
TEST(ModuleTest, ARandomScopeHasTheModulesMode) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    class Taker : public Module {
     public:
      explicit Taker(Module* parent) : Module(parent, "taker") {}
      RandomSnapshot snapshot;

     protected:
      DTensor Forward(const DTensor& x) override {
        snapshot = context()->state().random_snapshot();
        return Dropout(x, 0.5);
      }
    };
    Module root;
    Taker taker(&root);
    Materialize(root, context);
    const DTensor x = Full(context, DType::kF32, {64}, 1);
    taker.Eval();
    taker(x);
    const RandomScope again(context->state(), taker.snapshot);
    EXPECT_FALSE(context->state().training());
    EXPECT_TRUE(SameBits(Dropout(x, 0.5).ToLocal(), x.ToLocal()));
  });
}

// Each microbatch is a call of the root: without their offsets, all would draw what the first draws.
TEST(ModuleTest, MicrobatchesDrawAsTheWholeBatch) {
  const auto rows = [](const Tensor& x, int64_t first, int64_t count) {
    return CloneTensor(x.Slice(0, first, count), MakeCpuAllocator());
  };
  const Tensor batch = WholeNumbers(DType::kF32, {6, 5});
  Tensor expected;
  OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
    Tree tree;
    Materialize(tree, context);
    expected = tree(Lay(context, batch, "[-, -]")).ToLocal();
  });
  OnMesh("dp=2", [&](const IntrusivePtr<MeshContext>& context) {
    Tree tree;
    Materialize(tree, context);
    for (int64_t offset = 0; offset < 6; offset += 2) {
      const BatchOffsetGuard guard(context->state(), offset);
      const DTensor y = tree(Lay(context, rows(batch, offset, 2), "[dp, -]"));
      EXPECT_TRUE(SameBits(y.FullTensor(), rows(expected, offset, 2))) << offset;
    }
  });
}

// y = x + x.
class Twice : public Module {
 public:
  explicit Twice(Module* parent) : Module(parent, "twice") {}

 protected:
  DTensor Forward(const DTensor& x) override {
    seen = x.layout();
    return x + x;
  }

 public:
  Layout seen;
};

TEST(ModuleTest, BordersPinLayoutsAndGradients) {
  OnMesh("dp=2,tp=2", [](const IntrusivePtr<MeshContext>& context) {
    Module root;
    Twice twice(&root);
    Materialize(root, context);
    const DTensor x = Lay(context, RandomF64({4, 4}, 1), "[dp, -]").RequiresGrad();
    EXPECT_EQ(LayoutText(twice(x)), "[dp, -]");
    twice.set_border({.input = {{.axis = 1, .value = Shard(1), .gradient = {}}},
                      .output = {{.axis = 1, .value = Replicate(), .gradient = {}}}});
    const DTensor y = twice(x);
    EXPECT_EQ(twice.seen.ToString(context->mesh()), "[dp, tp]");
    EXPECT_EQ(LayoutText(y), "[dp, -]");
    EXPECT_EQ(LedgerText(*context), "all_gather tp activation");
    EXPECT_EQ(context->state().PathName(context->world().ledger().entries()[0].tag.path_id), "twice");
    EXPECT_TRUE(AllClose(y.FullTensor(), (2.0 * x).FullTensor(), 1e-15));
    context->world().ledger().Clear();
    Backward(Sum(y));
    // The gradient of y arrives as [dp, -]; inside it is sliced over tp; x's own layout gathers it.
    EXPECT_EQ(LedgerText(*context), "all_gather tp activation");
    EXPECT_EQ(x.grad().FullTensor().ToVector<double>(), std::vector<double>(16, 2));
    // The gradient of the input stays Partial if the border says so, and the leaf reduces it.
    twice.set_border({.input = {{.axis = 1, .value = Replicate(), .gradient = Partial()}}, .output = {}});
    const DTensor z = twice(x);
    context->world().ledger().Clear();
    const DTensor w = Lay(context, RandomF64({4, 4}, 2), "[-, tp]");
    Backward(Sum(MatMul(z, w)));
    EXPECT_EQ(LedgerText(*context), "all_reduce tp grad");
  });
}

// A pin that already holds must not nest the axis anew.
TEST(ModuleTest, APinThatHoldsMovesNothing) {
  OnMesh("a=2,b=2", [](const IntrusivePtr<MeshContext>& context) {
    Module root;
    Twice twice(&root);
    Materialize(root, context);
    twice.set_border({.input = {{.axis = 0, .value = Shard(0), .gradient = {}}}, .output = {}});
    twice(Lay(context, RandomF64({4, 4}, 1), "[a.b, -]"));
    EXPECT_EQ(twice.seen.ToString(context->mesh()), "[a.b, -]");
    EXPECT_EQ(LedgerText(*context), "");
  });
}

TEST(ModuleTest, OutputsAreCheckedForFiniteElementsOnDemand) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Module root;
    Twice twice(&root);
    Materialize(root, context);
    const DTensor x = Lay(context, Tensor::FromValues<float>({3}, {1, 2, INFINITY}), "[-]");
    EXPECT_EQ(ErrorOf([&] { twice(x); }), "nothing was thrown");
    context->state().set_check_finite(true);
    EXPECT_EQ(ErrorOf([&] { twice(x); }),
              "output of module 'twice' (f32[3] [-]) is not finite: local element 2 is inf");
    EXPECT_EQ(ErrorOf([&] { twice(Slice(x, 0, 0, 2)); }), "nothing was thrown");
    EXPECT_EQ(ErrorOf([&] { twice(Lay(context, WholeNumbers(DType::kI32, {3}), "[-]")); }),
              "nothing was thrown");
  });
}

// A parameter's all-reduce stands in the ledger under the module that owns it, wherever the rank is by then.
TEST(ModuleTest, GradientsAreWrittenDownUnderTheirModule) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    Module root;
    Module child(&root, "head");
    const Parameter w(&child, "w", {.shape = {3, 2}, .initializer = Initializer::Constant(1)});
    Materialize(root, context);
    const DTensor x = Lay(context, WholeNumbers(DType::kF32, {4, 3}), "[dp, -]");
    Backward(Sum(MatMul(x, w.Value())));
    std::vector<std::string> paths;
    for (const CommRow& row : CollectCommReport(*context).rows) {
      if (row.purpose == "grad") paths.push_back(row.path);
    }
    EXPECT_EQ(paths, std::vector<std::string>{"head"});
  });
}

}  // namespace
}  // namespace weft

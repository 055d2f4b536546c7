// Hooks of modules, tensors, parameters and optimizers, under plans.

#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/autograd/gradient_hook.h"
#include "dtensor/functions.h"
#include "dtensor/nn/linear.h"
#include "dtensor/nn/segmented_module.h"
#include "dtensor/optim/sgd.h"
#include "gmock/gmock.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

class Net : public Module {
 public:
  Linear a{this, "a", 5, 7, {.weight = Initializer::Normal(0, 0.5)}};
  Linear b{this, "b", 7, 3, {.weight = Initializer::Normal(0, 0.5)}};

 protected:
  DTensor Forward(const DTensor& x) override { return b(Gelu(a(x))); }
};

struct PlanCase {
  std::string name;
  std::string mesh;
  Plan plan;
};
std::vector<PlanCase> Plans() {
  return {
      {"one", "", {}},
      {"ddp", "dp=2", {{"", DataParallel("dp")}}},
      {"zero2", "dp=4", {{"", DataParallel("dp", {.shard_gradient = true})}}},
      {"fsdp", "dp=2", {{"*", FullyShard("dp")}, {"", FullyShard("dp")}}},
      {"tp", "tp=2", {{"a", ColumnParallel("tp")}, {"b", RowParallel("tp")}}},
      {"tp_fsdp",
       "dp=2,tp=2",
       {{"a", ColumnParallel("tp")}, {"b", RowParallel("tp")}, {"*", FullyShard("dp")}}},
  };
}

class HooksTest : public testing::TestWithParam<PlanCase> {};

DTensor Batch(const IntrusivePtr<MeshContext>& context) {
  const bool splits = context->mesh().FindAxis("dp") >= 0;
  return Lay(context, RandomF64({5, 5}, 1), splits ? "[dp, -]" : "[-, -]");
}

TEST_P(HooksTest, OfModulesSeeAndReplaceWhatCrosses) {
  OnMesh(GetParam().mesh, [](const IntrusivePtr<MeshContext>& context) {
    Net net;
    Parallelize(net, context, GetParam().plan, {.dtype = DType::kF64});
    const Tensor plain = net(Batch(context)).FullTensor();
    const Tensor doubled = net(Batch(context) * 2.0).FullTensor();
    std::vector<std::string> seen;
    const auto note = [&](const std::string& what) {
      return [&seen, what](Module& module, const DTensor& x) {
        seen.push_back(absl::StrCat(what, " ", module.path(), " ", x.shape().ToString()));
        return DTensor();
      };
    };
    std::vector<HookHandle> handles = {
        net.AddBeforeForward(note("before")), net.AddAfterForward(note("after")),
        net.b.AddBeforeForward(note("before")), net.a.AddAfterForward(note("after"))};
    EXPECT_TRUE(SameBits(net(Batch(context)).FullTensor(), plain));
    EXPECT_THAT(seen, ElementsAre("before  [5, 5]", "after a [5, 7]", "before b [5, 7]", "after  [5, 3]"));
    // In the order in which they were hung; the second sees what the first made.
    HookHandle twice = net.AddBeforeForward([](Module&, const DTensor& x) { return x * 2.0; });
    HookHandle plus = net.AddAfterForward([](Module&, const DTensor& y) { return y + 1.0; });
    HookHandle times = net.AddAfterForward([](Module&, const DTensor& y) { return y * 3.0; });
    const auto expected = [](const Tensor& y) {
      std::vector<double> values = y.ToVector<double>();
      for (double& value : values) value = (value + 1) * 3;
      return Tensor::FromValues<double>(y.shape(), values);
    };
    EXPECT_TRUE(AllClose(net(Batch(context)).FullTensor(), expected(doubled), 1e-13));
    twice.Remove();
    EXPECT_TRUE(AllClose(net(Batch(context)).FullTensor(), expected(plain), 1e-13));
    for (HookHandle& handle : handles) handle.Remove();
    plus.Remove();
    times.Remove();
    times.Remove();  // once more does nothing
    seen.clear();
    EXPECT_TRUE(SameBits(net(Batch(context)).FullTensor(), plain));
    EXPECT_THAT(seen, IsEmpty());
  });
}

TEST_P(HooksTest, OfTensorsSeeAndReplaceTheGradient) {
  OnMesh(GetParam().mesh, [](const IntrusivePtr<MeshContext>& context) {
    Net net;
    Parallelize(net, context, GetParam().plan, {.dtype = DType::kF64});
    const auto gradient_of_input = [&](const std::function<DTensor(const DTensor&)>& change) {
      const DTensor x = Batch(context).RequiresGrad();
      Backward(Sum(Square(net(change(x)))));
      for (Parameter* parameter : net.AllParameters()) parameter->ClearGrad();
      return x.grad().FullTensor();
    };
    const Tensor plain = gradient_of_input([](const DTensor& x) { return x; });
    Tensor seen;
    const Tensor same = gradient_of_input([&](const DTensor& x) {
      return OnGradient(x,
                        [&](const DTensor& gradient) {
                          seen = gradient.FullTensor();
                          return DTensor();
                        })
          .value;
    });
    EXPECT_TRUE(SameBits(same, plain));
    EXPECT_TRUE(SameBits(seen, plain));
    const Tensor halved = gradient_of_input([](const DTensor& x) {
      return OnGradient(x, [](const DTensor& gradient) { return gradient * 0.5; }).value;
    });
    std::vector<double> half = plain.ToVector<double>();
    for (double& value : half) value /= 2;
    EXPECT_EQ(halved.ToVector<double>(), half);
    const Tensor removed = gradient_of_input([](const DTensor& x) {
      HookedTensor hooked = OnGradient(x, [](const DTensor& gradient) { return gradient * 0.5; });
      hooked.handle.Remove();
      return hooked.value;
    });
    EXPECT_TRUE(SameBits(removed, plain));
  });
}

TEST_P(HooksTest, OfParametersAreCalledWhenTheirGradientRests) {
  OnMesh(GetParam().mesh, [](const IntrusivePtr<MeshContext>& context) {
    Net net, other;
    Parallelize(net, context, GetParam().plan, {.dtype = DType::kF64});
    Parallelize(other, context, GetParam().plan, {.dtype = DType::kF64});
    Backward(Sum(Square(other(Batch(context)))));
    std::vector<std::string> ready;
    std::vector<HookHandle> handles;
    for (Parameter* parameter : net.AllParameters()) {
      handles.push_back(parameter->AddGradientReady([&](Parameter& p) {
        ready.push_back(p.path());
        EXPECT_EQ(p.grad().layout(), p.layouts().of_gradient());
      }));
    }
    // It may change the gradient.
    handles.push_back(net.b.bias->AddGradientReady([](Parameter& p) { p.SetGrad(p.grad() * 0.0); }));
    for (int pass = 0; pass < 2; ++pass) {
      ready.clear();
      for (Parameter* parameter : net.AllParameters()) parameter->ClearGrad();
      Backward(Sum(Square(net(Batch(context)))));
      EXPECT_THAT(ready, UnorderedElementsAre("a.weight", "a.bias", "b.weight", "b.bias"));
      EXPECT_TRUE(SameBits(net.a.weight.grad().FullTensor(), other.a.weight.grad().FullTensor()));
      EXPECT_EQ(net.b.bias->grad().FullTensor().ToVector<double>(), std::vector<double>(3, 0));
    }
    net.b.set_trainable(false);  // nothing comes of what is frozen
    for (HookHandle& handle : handles) {
      if (&handle != &handles[0]) continue;
      handle.Remove();
    }
    ready.clear();
    Backward(Sum(Square(net(Batch(context)))));
    EXPECT_THAT(ready, ElementsAre("a.bias"));
  });
}

TEST_P(HooksTest, OfOptimizersAreCalledAroundTheStep) {
  OnMesh(GetParam().mesh, [](const IntrusivePtr<MeshContext>& context) {
    Net net;
    Parallelize(net, context, GetParam().plan, {.dtype = DType::kF64});
    Sgd sgd(net.AllParameters(), {});
    const auto values = [&] { return net.a.weight.at_rest().FullTensor().ToVector<double>(); };
    const std::vector<double> first = values();
    std::vector<std::vector<double>> seen;
    const auto see = [&](Optimizer& optimizer) {
      EXPECT_EQ(&optimizer, &sgd);
      seen.push_back(values());
    };
    HookHandle before = sgd.AddBeforeStep(see);
    HookHandle after = sgd.AddAfterStep(see);
    Backward(Sum(Square(net(Batch(context)))));
    sgd.Step(0.1);
    ASSERT_EQ(seen.size(), 2u);
    EXPECT_EQ(seen[0], first);
    EXPECT_EQ(seen[1], values());
    EXPECT_NE(seen[1], first);
    before.Remove();
    sgd.ZeroGrad();
    sgd.Step(0.1);  // there is nothing to update
    EXPECT_EQ(seen.size(), 3u);
    after.Remove();
    sgd.Step(0.1);
    EXPECT_EQ(seen.size(), 3u);
  });
}

INSTANTIATE_TEST_SUITE_P(Plans, HooksTest, testing::ValuesIn(Plans()),
                         [](const auto& info) { return info.param.name; });

TEST(HooksTest, Misuse) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Net net;
    EXPECT_EQ(ErrorOf([&] { net.a.weight.AddGradientReady([](Parameter&) {}); }),
              "parameter 'a.weight' has no value yet: call Materialize or Parallelize on the model first");
    EXPECT_EQ(ErrorOf([&] { net.a.AddBeforeForward(nullptr); }),
              "AddBeforeForward of 'a': expected a function, got an empty one");
    EXPECT_EQ(ErrorOf([&] { net.a.AddAfterForward(nullptr); }),
              "AddAfterForward of 'a': expected a function, got an empty one");
    Materialize(net, context, {.dtype = DType::kF64});
    Sgd sgd(net.AllParameters(), {});
    EXPECT_EQ(ErrorOf([&] { sgd.AddBeforeStep(nullptr); }),
              "AddBeforeStep: expected a function, got an empty one");
    EXPECT_EQ(ErrorOf([&] { sgd.AddAfterStep(nullptr); }),
              "AddAfterStep: expected a function, got an empty one");
    EXPECT_EQ(ErrorOf([&] { net.a.weight.AddGradientReady(nullptr); }),
              "AddGradientReady of 'a.weight': expected a function, got an empty one");
    const DTensor x = Batch(context);
    EXPECT_EQ(ErrorOf([&] { OnGradient(x, [](const DTensor& g) { return g; }); }),
              "OnGradient: expected a tensor that wants a gradient, got f64[5, 5] [-, -]");
    EXPECT_EQ(ErrorOf([&] { OnGradient(x.RequiresGrad(), nullptr); }),
              "OnGradient: expected a function, got an empty one");
    const DTensor hooked =
        OnGradient(x.RequiresGrad(), [](const DTensor& g) { return Slice(g, 0, 0, 2); }).value;
    EXPECT_EQ(ErrorOf([&] { Backward(Sum(hooked)); }), "gradient hook: expected f64[5, 5], got f64[2, 5]");
    const DTensor elsewhere = Full(Bind(context, DeviceMesh::Parse("b=1")), DType::kF64, {5, 5}, 1);
    const DTensor moved = OnGradient(x.RequiresGrad(), [&](const DTensor&) { return elsewhere; }).value;
    EXPECT_EQ(ErrorOf([&] { Backward(Sum(moved)); }),
              "gradient hook: expected a tensor on mesh (), got f64[5, 5] [-, -] on mesh (b=1)");
    // Freezing belongs between passes.
    const DTensor freezes = OnGradient(x.RequiresGrad(), [&](const DTensor& g) {
                              net.a.weight.set_trainable(false);
                              return g;
                            }).value;
    EXPECT_EQ(ErrorOf([&] { Backward(Sum(freezes)); }),
              "parameter 'a.weight': set_trainable within a backward pass; expected it between passes");
    EXPECT_TRUE(net.a.weight.trainable());
    // A handle may outlive what it is of.
    HookHandle handle;
    {
      Net gone;
      handle = gone.AddBeforeForward([](Module&, const DTensor& y) { return y; });
    }
    handle.Remove();
    HookHandle().Remove();
  });
}

// A hook that takes itself off while it runs is called no more.
TEST(HooksTest, MayTakeThemselvesOff) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Net net;
    Materialize(net, context, {.dtype = DType::kF64});
    int calls = 0;
    HookHandle handle;
    handle = net.AddBeforeForward([&](Module&, const DTensor&) {
      ++calls;
      handle.Remove();
      return DTensor();
    });
    net(Batch(context));
    net(Batch(context));
    EXPECT_EQ(calls, 1);
  });
}

// Two models of one shape in one program.
TEST(RootNameTest, KeepsBitsApart) {
  for (const PlanCase& plan : Plans()) {
    OnMesh(plan.mesh, [&](const IntrusivePtr<MeshContext>& context) {
      class Dropping : public Net {
       protected:
        DTensor Forward(const DTensor& x) override { return Dropout(Net::Forward(x), 0.5); }
      };
      Dropping plain, student, teacher;
      student.set_name("student");
      teacher.set_name("teacher");
      for (Dropping* net : {&plain, &student, &teacher}) {
        Parallelize(*net, context, plan.plan, {.dtype = DType::kF64});
        EXPECT_EQ(net->a.weight.path(), "a.weight");
      }
      EXPECT_EQ(teacher.a.full_path(), "teacher.a");
      EXPECT_EQ(teacher.full_path(), "teacher");
      EXPECT_EQ(plain.a.full_path(), "a");
      const Tensor of_student = student.a.weight.at_rest().FullTensor();
      EXPECT_FALSE(SameBits(of_student, teacher.a.weight.at_rest().FullTensor()));
      EXPECT_FALSE(SameBits(of_student, plain.a.weight.at_rest().FullTensor()));
      // Activations too, where weights are alike.
      for (size_t i = 0; i < 4; ++i) teacher.AllParameters()[i]->Load(student.AllParameters()[i]->at_rest());
      EXPECT_FALSE(SameBits(student(Batch(context)).FullTensor(), teacher(Batch(context)).FullTensor()));
      // What moves is written down behind the name.
      context->world().ledger().Clear();
      Backward(Sum(Square(teacher(Batch(context)))));
      for (const LedgerEntry& entry : context->world().ledger().entries()) {
        const Purpose purpose = static_cast<Purpose>(entry.tag.purpose);
        if (purpose != Purpose::kGrad && purpose != Purpose::kParam) continue;
        EXPECT_THAT(context->state().PathName(entry.tag.path_id), HasSubstr("teacher"));
      }
      EXPECT_EQ(ErrorOf([&] { student.set_name("x"); }),
                "set_name('x'): the model has values already, which were drawn without it");
      EXPECT_EQ(ErrorOf([&] { student.a.set_name("x"); }),
                "module 'a' has a name already: set_name is for a root");
    });
  }
}

// A chain of two inputs and two outputs, of which it changes the first.
class Pair : public SegmentedModule {
 public:
  Linear a{this, "a", 5, 5}, b{this, "b", 5, 5};
  LossSum LossOf(const DTensors& outputs, const DTensor& targets) override {
    return MseLoss(outputs[0] + outputs[1], targets);
  }

 protected:
  std::vector<Segment> MakeSegments() override {
    const auto segment = [](Linear& layer) {
      return Segment{.modules = {&layer}, .cost = 1, .run = [&](const DTensors& x) -> DTensors {
                       return {layer(x[0]), x[1]};
                     }};
    };
    return {segment(a), segment(b)};
  }
};

// Whichever rank of a pipeline has them.
TEST(HooksOfStagesTest, SeeEveryInputAndOutputOfTheModel) {
  OnMesh("pp=2", [](const IntrusivePtr<MeshContext>& context) {
    Pair model;
    Parallelize(model, context, {{"*", Pipeline("pp")}}, {.dtype = DType::kF64});
    PipelineExecutor pipeline(model, GenerateSchedule("1f1b", {.ranks = 2, .microbatches = 1}));
    const auto outputs = [&](double scale) {
      std::vector<std::vector<double>> values;
      DTensors inputs;
      for (const uint64_t seed : {1, 2}) {
        inputs.push_back(DTensor::Distribute(model.context(), RandomF64({5, 5}, seed), Layout(2, 1)) * scale);
      }
      for (const DTensor& y : pipeline.ForwardOutputs(inputs)) {
        values.push_back(y.FullTensor().ToVector<double>());
      }
      return values;
    };
    std::vector<std::vector<double>> plus_one = outputs(1);
    ASSERT_EQ(plus_one.size(), 2u);
    for (std::vector<double>& values : plus_one) {
      for (double& value : values) value += 1;
    }
    const std::vector<std::vector<double>> of_doubled = outputs(2);
    HookHandle twice = model.AddBeforeForward([](Module&, const DTensor& x) { return x * 2.0; });
    EXPECT_EQ(outputs(1), of_doubled);
    twice.Remove();
    const HookHandle plus = model.AddAfterForward([](Module&, const DTensor& y) { return y + 1.0; });
    EXPECT_EQ(outputs(1), plus_one);
  });
}

}  // namespace
}  // namespace weft

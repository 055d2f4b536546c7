// Buffers: named tensors of modules that are not trained, under plans and in checkpoints.

#include <string>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/checkpoint/checkpoint.h"
#include "dtensor/checkpoint/model_state.h"
#include "dtensor/functions.h"
#include "dtensor/nn/layers/layers.h"
#include "dtensor/nn/linear.h"
#include "dtensor/nn/module_buffer.h"
#include "dtensor/nn/segmented_module.h"
#include "dtensor/optim/sgd.h"
#include "gmock/gmock.h"
#include "parallel/parallelize.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// y = x w + mean, where `mean` is a buffer as wide as the output.
class Shifted : public Module {
 public:
  Shifted(Module* parent, std::string name, int64_t in, int64_t out)
      : Module(parent, std::move(name)),
        weight(this, "weight",
               {.shape = {in, out}, .initializer = Initializer::Normal(0, 1), .shard_dims = {.column = 1}}),
        mean(this, "mean",
             {.shape = {out}, .initializer = Initializer::Uniform(1, 2), .shard_dims = {.column = 0}}),
        seen(this, "seen", {.shape = {}, .dtype = DType::kI64}),
        scratch(this, "scratch", {.shape = {2}, .persistent = false}) {}
  Parameter weight;
  ModuleBuffer mean, seen, scratch;

 protected:
  DTensor Forward(const DTensor& x) override { return MatMul(x, weight.Value()) + mean.Value(); }
};

class Net : public Module {
 public:
  Shifted first{this, "first", 3, 5};
  ModuleBuffer table{this, "table", {.shape = {5, 3}, .initializer = Initializer::Normal(0, 1)}};
  Shifted second{this, "second", 5, 7};
};

std::vector<std::string> Paths(const std::vector<ModuleBuffer*>& buffers) {
  std::vector<std::string> paths;
  for (const ModuleBuffer* buffer : buffers) paths.push_back(buffer->path());
  return paths;
}

TEST(BuffersTest, AreWalkedInOrderOfRegistration) {
  Net net;
  EXPECT_THAT(Paths(net.AllBuffers()), ElementsAre("table", "first.mean", "first.seen", "first.scratch",
                                                   "second.mean", "second.seen", "second.scratch"));
  EXPECT_THAT(net.first.buffers(), ElementsAre(&net.first.mean, &net.first.seen, &net.first.scratch));
  EXPECT_EQ(net.AllParameters().size(), 2u);
}

TEST(BuffersTest, HaveTheDTypeOfParametersButAtLeastF32) {
  for (const auto& [dtype, expected] : std::vector<std::pair<DType, DType>>{
           {DType::kBF16, DType::kF32}, {DType::kF32, DType::kF32}, {DType::kF64, DType::kF64}}) {
    OnMesh("a=2", [&](const IntrusivePtr<MeshContext>& context) {
      Net net;
      Materialize(net, context, {.dtype = dtype});
      EXPECT_EQ(net.table.Value().ToString(), absl::StrCat(DTypeName(expected), "[5, 3] [-, -]"));
      EXPECT_EQ(net.first.seen.Value().ToString(), "i64[] []");
      EXPECT_FALSE(net.table.Value().requires_grad());
    });
  }
}

TEST(BuffersTest, LieAsStylesOfTheirModuleSay) {
  const Plan plan = {{"first", ColumnParallel("tp")}, {"", FullyShard("dp")}};
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2,tp=2");
  Net described;
  const std::string table = ResolvePlan(described, mesh, plan).ToTable(described, mesh);
  EXPECT_THAT(table, HasSubstr("first.mean      ColumnParallel(tp)"));
  std::vector<Tensor> expected;
  OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
    Net net;
    Parallelize(net, context, {});
    expected = {net.first.mean.Value().ToLocal(), net.table.Value().ToLocal()};
  });
  OnMesh("dp=2,tp=2", [&](const IntrusivePtr<MeshContext>& context) {
    Net net;
    Parallelize(net, context, plan);
    EXPECT_EQ(LayoutText(net.first.mean.Value()), "[tp]");  // 3 of 5 and 2
    EXPECT_EQ(LayoutText(net.second.mean.Value()), "[-]");
    EXPECT_EQ(LayoutText(net.table.Value()), "[-, -]");
    EXPECT_TRUE(SameBits(net.first.mean.Value().FullTensor(), expected[0]));
    EXPECT_TRUE(SameBits(net.table.Value().FullTensor(), expected[1]));
  });
  const Plan twice = {{"first", ColumnParallel("tp")}, {"first", ColumnParallel("tp")}};
  EXPECT_THAT(ErrorOf([&] { ResolvePlan(described, mesh, twice); }),
              HasSubstr("is already split over axis 'tp'"));
}

TEST(BuffersTest, SetTakesAnyLayoutAndKeepsItsOwn) {
  OnMesh("tp=2", [](const IntrusivePtr<MeshContext>& context) {
    Net net;
    Parallelize(net, context, {{"first", ColumnParallel("tp")}}, {.dtype = DType::kF64});
    const DTensor before = net.first.mean.Value();
    const Tensor old = before.FullTensor();
    const Tensor full = WholeNumbers(DType::kF64, {5});
    for (const char* layout : {"[-]", "[tp]", "[-] P{tp}"}) {
      net.first.mean.Set(Lay(context, full, layout));
      EXPECT_EQ(LayoutText(net.first.mean.Value()), "[tp]");
      EXPECT_TRUE(SameBits(net.first.mean.Value().FullTensor(), full)) << layout;
    }
    EXPECT_TRUE(SameBits(before.FullTensor(), old));  // who held it keeps it
    // What had a history has none here.
    net.first.mean.Set(Lay(context, full, "[tp]").RequiresGrad() * 2.0);
    EXPECT_FALSE(net.first.mean.Value().requires_grad());
    EXPECT_EQ(ErrorOf([&] { net.first.mean.Set(Full(context, DType::kF32, {5}, 0)); }),
              "buffer 'first.mean': expected f64[5], got f32[5]");
    EXPECT_EQ(ErrorOf([&] { net.first.mean.Set({}); }),
              "buffer 'first.mean': expected f64[5], got an undefined tensor");
  });
}

// Whether the parameter is used as it rests, or in a copy.
TEST(BuffersTest, AParametersValueIsKeptAsItWas) {
  class Averaged : public Module {
   public:
    Parameter w{this, "w", {.shape = {4}, .initializer = Initializer::Normal(0, 1)}};
    ModuleBuffer kept{this, "kept", {.shape = {4}}};
  };
  const std::vector<std::pair<const char*, Plan>> settings = {
      {"", Plan()}, {"dp=2", Plan{{"", DataParallel("dp")}}}, {"dp=2", Plan{{"", FullyShard("dp")}}}};
  for (const auto& [mesh, plan] : settings) {
    OnMesh(mesh, [&, &plan = plan](const IntrusivePtr<MeshContext>& context) {
      Averaged model;
      Parallelize(model, context, plan, {.dtype = DType::kF64});
      const auto values = [](const DTensor& x) { return x.FullTensor().ToVector<double>(); };
      Sgd sgd({&model.w}, {});
      for (const bool loads : {false, true}) {
        const std::vector<double> before = values(model.w.at_rest());
        if (loads) {
          LoadState(model, {{"kept", StateOf(model).at("w")}}, {.strict = false});
        } else {
          model.kept.Set(model.w.Value());
        }
        model.w.SetGrad(Full(context, DType::kF64, {4}, 1, model.w.layouts().of_gradient()));
        sgd.Step(0.5);
        EXPECT_NE(values(model.w.at_rest()), before);
        EXPECT_EQ(values(model.kept.Value()), before) << loads;
      }
      // Of a frozen one, too: backward reads the buffer.
      model.w.set_trainable(false);
      const std::vector<double> before = values(model.w.at_rest());
      model.kept.Set(model.w.Value());
      const DTensor x = Full(context, DType::kF64, {4}, 1).RequiresGrad();
      const DTensor loss = Sum(x * model.kept.Value());
      model.w.Load(Full(context, DType::kF64, {4}, 7));
      Backward(loss);
      EXPECT_EQ(values(x.grad()), before);
    });
  }
}

TEST(BuffersTest, Misuse) {
  Net net;
  EXPECT_EQ(ErrorOf([&] { net.table.Value(); }),
            "buffer 'table' has no value yet: call Materialize or Parallelize on the model first");
  EXPECT_EQ(ErrorOf([&] { ModuleBuffer(&net.first, "weight", {}); }),
            "module 'first' already has a parameter or buffer 'weight'");
  EXPECT_EQ(ErrorOf([&] { ModuleBuffer(&net.first, "mean", {}); }),
            "module 'first' already has a parameter or buffer 'mean'");
  OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
    Materialize(net, context);
    EXPECT_EQ(ErrorOf([&] { net.table.Materialize(context, DType::kF32, Layout(2, 0)); }),
              "buffer 'table' already has a value");
  });
}

TEST(BuffersTest, CheckpointsHaveThem) {
  const std::string path = testing::TempDir() + "/buffers.safetensors";
  const Tensor mean = WholeNumbers(DType::kF32, {5});
  const Tensor seen = Tensor::FromValues<int64_t>({}, {41});
  OnMesh("dp=2,tp=2", [&](const IntrusivePtr<MeshContext>& context) {
    Net net;
    Parallelize(net, context, {{"first", ColumnParallel("tp")}});
    net.first.mean.Set(Lay(context, mean, "[tp]"));
    net.first.seen.Set(Lay(context, seen, "[]"));
    const Sgd sgd(net.AllParameters(), {});
    std::vector<std::string> names;
    for (const auto& [name, tensor] : CheckpointTensors(net, sgd)) names.push_back(name);
    EXPECT_THAT(names, ElementsAre("first.weight", "second.weight", "table", "first.mean", "first.seen",
                                   "second.mean", "second.seen", "optimizer.updates"));
    SaveTensors(path, CheckpointTensors(net, sgd), {});
  });
  for (const char* mesh : {"", "tp=3", "tp=8"}) {
    OnMesh(mesh, [&](const IntrusivePtr<MeshContext>& context) {
      Net net;
      const bool splits = context->mesh().num_axes() > 0;
      Parallelize(net, context, splits ? Plan{{"first", ColumnParallel("tp")}} : Plan());
      const DTensor before = net.first.mean.Value();
      const Tensor old = before.FullTensor();
      SafetensorsReader reader(path);
      LoadParameters(reader, net);
      EXPECT_TRUE(SameBits(net.first.mean.Value().FullTensor(), mean)) << mesh;
      EXPECT_EQ(net.first.seen.Value().Item(), 41);
      EXPECT_TRUE(SameBits(before.FullTensor(), old));
    });
  }
}

// Running statistics move once, by forward; gradients are those without recomputing, to the bit, in either mode.
TEST(BuffersTest, ARecomputedModuleMovesItsStatisticsOnce) {
  class Block : public Module {
   public:
    Block(Module* parent, std::string name) : Module(parent, std::move(name)) {}
    Linear up{this, "up", 5, 6, {.weight = Initializer::Normal(0, 0.5)}};
    BatchNorm1d norm{this, "norm", 6};
    nn::Dropout drop{this, "drop", 0.3};

   protected:
    DTensor Forward(const DTensor& x) override { return Gelu(drop(norm(up(x)))); }
  };
  class Deep : public Module {
   public:
    Block block{this, "block"};

   protected:
    DTensor Forward(const DTensor& x) override { return block(x); }
  };
  for (const Plan& data : {Plan{{"", DataParallel("dp")}}, Plan{{"", FullyShard("dp")}}}) {
    OnMesh("dp=2", [&](const IntrusivePtr<MeshContext>& context) {
      Deep plain, again;
      Parallelize(plain, context, data, {.dtype = DType::kF64});
      Parallelize(again, context, data.Merge({{"block", Recompute()}}), {.dtype = DType::kF64});
      const DTensor x = Lay(context, RandomF64({5, 5}, 1), "[dp, -]");
      for (int pass = 0; pass < 3; ++pass) {
        for (Deep* net : {&plain, &again}) {
          if (pass == 1) net->Eval();
          if (pass == 2) net->block.drop.Train();  // within modules that evaluate
          for (Parameter* parameter : net->AllParameters()) parameter->ClearGrad();
          Backward(Sum(Square((*net)(x))));
        }
        EXPECT_EQ(again.block.norm.num_batches_tracked->Value().Item(), 1);
        for (size_t i = 0; i < plain.AllBuffers().size(); ++i) {
          EXPECT_TRUE(SameBits(plain.AllBuffers()[i]->Value().FullTensor(),
                               again.AllBuffers()[i]->Value().FullTensor()));
        }
        for (size_t i = 0; i < plain.AllParameters().size(); ++i) {
          EXPECT_TRUE(SameBits(plain.AllParameters()[i]->grad().ToLocal(),
                               again.AllParameters()[i]->grad().ToLocal()))
              << pass << " " << plain.AllParameters()[i]->path();
        }
      }
    });
  }
}

// A chain of two, each with buffers.
class Chain : public SegmentedModule {
 public:
  Shifted first{this, "first", 4, 4};
  Shifted second{this, "second", 4, 4};
  ModuleBuffer own{this, "own", {.shape = {2}}};
  LossSum LossOf(const DTensors& outputs, const DTensor& targets) override {
    return MseLoss(outputs[0], targets);
  }

 protected:
  std::vector<Segment> MakeSegments() override {
    const auto segment = [](Module& module) {
      return Segment{.modules = {&module}, .cost = 1, .run = [&](const DTensors& x) -> DTensors {
                       return {module(x[0])};
                     }};
    };
    return {segment(first), segment(second)};
  }
};

TEST(BuffersTest, AreWhereTheirStageIs) {
  const std::string path = testing::TempDir() + "/stages.safetensors";
  OnMesh("pp=2", [&](const IntrusivePtr<MeshContext>& context) {
    Chain chain;
    Parallelize(chain, context, {{"*", Pipeline("pp")}});
    const bool is_first = context->coordinate()[0] == 0;
    EXPECT_EQ(chain.first.mean.is_here(), is_first);
    EXPECT_EQ(chain.second.mean.is_here(), !is_first);
    EXPECT_TRUE(chain.own.is_here());  // of the root, which every stage has
    EXPECT_EQ(chain.AllBuffers().size(), 4u);
    EXPECT_EQ(chain.RegisteredBuffers().size(), 7u);
    Shifted& other = is_first ? chain.second : chain.first;
    EXPECT_EQ(ErrorOf([&] { other.mean.Value(); }),
              absl::StrCat("buffer '", other.mean.path(),
                           "' is not on this rank: it belongs to another stage or part of the model"));
    Sgd sgd(chain.AllParameters(), {});
    SaveTensors(path, CheckpointTensors(chain, sgd), {}, &*chain.stages());
  });
  const SafetensorsReader reader(path);
  for (const char* name : {"own", "first.mean", "first.seen", "second.mean", "second.seen"}) {
    EXPECT_NE(reader.Find(name), nullptr) << name;
  }
}

}  // namespace
}  // namespace weft

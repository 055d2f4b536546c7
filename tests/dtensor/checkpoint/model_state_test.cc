#include "dtensor/checkpoint/model_state.h"

#include <chrono>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/checkpoint/checkpoint.h"
#include "dtensor/functions.h"
#include "dtensor/nn/embedding.h"
#include "dtensor/nn/layers/layers.h"
#include "dtensor/optim/sgd.h"
#include "gmock/gmock.h"
#include "mesh/shard_math.h"
#include "parallel/parallelize.h"
#include "runtime/comm/worker.h"
#include "runtime/tensor/copy.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

// Extents of 5 and 3: uneven over 2 ranks.
class Net : public Module {
 public:
  Linear body{this, "body", 5, 5, {.weight = Initializer::Normal(0, 1)}};
  BatchNorm1d norm{this, "norm", 5};
  Linear head{this, "head", 5, 3, {.weight = Initializer::Normal(0, 1)}};
};
// The same with another head.
class Other : public Module {
 public:
  Linear body{this, "body", 5, 5};
  BatchNorm1d norm{this, "norm", 5};
  Linear score{this, "score", 5, 2};
};

std::vector<std::string> Names(const StateMap& state) {
  std::vector<std::string> names;
  for (const auto& [name, value] : state) names.push_back(name);
  return names;
}

const Plan kFsdp = {{"", FullyShard("dp")}};
const Plan kTp = {{"body", ColumnParallel("tp")}, {"norm", ColumnParallel("tp", {.input = Shard(1)})}};

TEST(ModelStateTest, IsWhatTheModelHas) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    Net net;
    EXPECT_EQ(ErrorOf([&] { StateOf(net); }),
              "parameter 'body.weight' has no value yet: call Materialize or Parallelize on the model first");
    Parallelize(net, context, kFsdp);
    const StateMap state = StateOf(net);
    EXPECT_THAT(Names(state), ElementsAre("body.bias", "body.weight", "head.bias", "head.weight", "norm.bias",
                                          "norm.num_batches_tracked", "norm.running_mean", "norm.running_var",
                                          "norm.weight"));
    EXPECT_FALSE(state.at("body.weight").requires_grad());
    EXPECT_EQ(state.at("body.weight").layout(), net.body.weight.at_rest().layout());
    // From a module on; under other names; without some.
    EXPECT_THAT(Names(StateOf(net.body)), ElementsAre("bias", "weight"));
    EXPECT_THAT(Names(StateOf(net.body, {.prefix = "model."})), ElementsAre("model.bias", "model.weight"));
    const auto only_weights = [](const std::string& name) {
      return name == "weight" ? std::string("w") : std::string();
    };
    EXPECT_THAT(Names(StateOf(net.body, {.rename = only_weights})), ElementsAre("w"));
    EXPECT_EQ(ErrorOf([&] { StateOf(net.body, {.rename = [](const std::string&) { return "w"; }}); }),
              "state of module 'body': two of its tensors are named 'w'; the second is 'bias'");
    // The state shares memory; a clone does not.
    const StateMap clone = CloneState(net);
    const Tensor before = state.at("body.bias").FullTensor();
    net.body.bias->Load(Full(context, DType::kF32, {5}, 7));
    EXPECT_EQ(state.at("body.bias").FullTensor().ToVector<float>(), std::vector<float>(5, 7));
    EXPECT_TRUE(SameBits(clone.at("body.bias").FullTensor(), before));
  });
}

// An update whose pieces are still gathered on their lane has come when the state is read, before anybody reads the model.
TEST(ModelStateTest, HasAnUpdateThatIsUnderWay) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    Net net;
    Parallelize(net, context, {{"", DataParallel("dp", {.shard_state = true})}});
    const StateMap state = StateOf(net);
    const std::vector<float> before = state.at("body.weight").FullTensor().ToVector<float>();
    for (Parameter* parameter : net.AllParameters()) {
      parameter->SetGrad(
          Full(context, DType::kF32, parameter->spec().shape, 1, parameter->layouts().of_gradient()));
    }
    Sgd optimizer(net.AllParameters(), {});
    context->state().LaneWorker(Lane::kParam).Submit([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    });
    optimizer.Step(0.5);
    const std::vector<float> seen = state.at("body.weight").FullTensor().ToVector<float>();
    EXPECT_EQ(seen, net.body.weight.at_rest().FullTensor().ToVector<float>());
    for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(seen[i], before[i] - 0.5f) << i;
  });
}

TEST(ModelStateTest, LoadsOnAnyLayout) {
  OnMesh("dp=2,tp=2", [](const IntrusivePtr<MeshContext>& context) {
    Net from, to;
    from.set_name("from");
    Parallelize(from, context, kFsdp);
    from.norm.running_mean->Set(Full(context, DType::kF32, {5}, 3));
    Parallelize(to, context, kTp);
    EXPECT_EQ(LoadState(to, StateOf(from)), LoadStateResult());
    const StateMap expected = StateOf(from);
    for (const auto& [name, value] : StateOf(to)) {
      EXPECT_TRUE(SameBits(value.FullTensor(), expected.at(name).FullTensor())) << name;
    }
    EXPECT_EQ(LayoutText(to.norm.running_mean->Value()), "[tp]");
    EXPECT_EQ(to.norm.running_mean->Value().FullTensor().ToVector<float>(), std::vector<float>(5, 3));
  });
}

// A table that rests [tp.dp, -], one row per rank: on the other mesh the ranks have the rows in another order.
TEST(ModelStateTest, LoadsFromAnotherMeshOfTheSameRanks) {
  class Table : public Module {
   public:
    Embedding wte{this, "wte", 6, 2};
  };
  const Plan plan = {{"wte", VocabParallel("tp")}, {"", FullyShard("dp")}};
  const Tensor full = WholeNumbers(DType::kF32, {6, 2});
  OnMesh("dp=2,tp=3", [&](const IntrusivePtr<MeshContext>& context) {
    const IntrusivePtr<MeshContext> other = Bind(context, DeviceMesh::Parse("dp=3,tp=2"));
    Table from, to;
    Parallelize(from, context, plan);
    Parallelize(to, other, plan);
    from.wte.weight.Load(Lay(context, full, "[-, -]"));
    EXPECT_EQ(LayoutText(to.wte.weight.at_rest()), "[tp.dp, -]");
    EXPECT_EQ(LoadState(to, StateOf(from)), LoadStateResult());
    const DTensor& value = to.wte.weight.at_rest();
    EXPECT_EQ(value.context(), other);
    EXPECT_TRUE(
        SameBits(value.ToLocal(), PieceOf(full, value.layout(), other->mesh(), context->world().rank())));
    // A parameter alone, of terms.
    FillTensor(value.ToLocal(), 0);
    to.wte.weight.Load(Lay(context, full, "[dp, -] P{tp}"));
    EXPECT_TRUE(SameBits(value.FullTensor(), full));
  });
}

// Buffers of another mesh, and of another context of the same one, come to the model's own: it goes on there.
TEST(ModelStateTest, BuffersComeToTheModelsContext) {
  class Norm : public Module {
   public:
    BatchNorm1d norm{this, "norm", 3};
  };
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    for (const char* axis : {"ep", "dp"}) {
      const IntrusivePtr<MeshContext> other = Bind(context, DeviceMesh::Parse(absl::StrCat(axis, "=2")));
      Norm from, to;
      Parallelize(from, context, {{"", DataParallel("dp")}});
      Parallelize(to, other, {{"", DataParallel(axis)}});
      from.norm.running_mean->Set(Full(context, DType::kF32, {3}, 3));
      EXPECT_EQ(LoadState(to, StateOf(from)), LoadStateResult());
      for (const auto& [name, value] : StateOf(to)) EXPECT_EQ(value.context(), other) << name;
      const Tensor x = WholeNumbers(DType::kF32, {4, 3});
      std::vector<double> expected = x.ToVector<double>();
      for (double& element : expected) element = (element - 3) / std::sqrt(1 + 1e-5);
      to.Eval();
      const Tensor y = to.norm(Lay(other, x, Layout(2, 1).WithShard(0, 0))).FullTensor();
      EXPECT_TRUE(AllClose(y, FromDoubles(DType::kF32, {4, 3}, expected), 1e-6)) << axis;
      to.Train();
      to.norm(Lay(other, x, Layout(2, 1)));
      EXPECT_EQ(to.norm.num_batches_tracked->Value().Item(), 1);
    }
  });
}

TEST(ModelStateTest, AMeshOfOtherRanksIsRefusedBeforeAnythingChanges) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    const DeviceMesh mine(std::vector<MeshAxis>(), {context->world().rank()});
    Net from, to;
    to.set_name("to");
    Parallelize(from, context, kFsdp);
    Parallelize(to, context, kFsdp);
    const StateMap before = CloneState(to);
    StateMap state = StateOf(from);
    const DTensor& alone = state["norm.running_var"] = Full(Bind(context, mine), DType::kF32, {5}, 2);
    EXPECT_EQ(ErrorOf([&] { LoadState(to, state); }),
              "load state: 'norm.running_var' lies on mesh (), expected mesh (dp=2) or another of the same "
              "ranks for 'norm.running_var'");
    EXPECT_EQ(ErrorOf([&] { to.norm.running_var->Set(alone); }),
              "buffer 'norm.running_var': the value lies on mesh (), expected mesh (dp=2) or another of the "
              "same ranks");
    EXPECT_EQ(
        ErrorOf([&] { to.norm.weight->Load(alone); }),
        "parameter 'norm.weight': the value lies on mesh (), expected mesh (dp=2) or another of the same "
        "ranks");
    for (const auto& [name, value] : StateOf(to)) {
      EXPECT_TRUE(SameBits(value.ToLocal(), before.at(name).ToLocal())) << name;
    }
  });
}

TEST(ModelStateTest, PartsAndNames) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    Net net;
    Other other;
    other.set_name("other");
    Parallelize(net, context, kFsdp);
    Parallelize(other, context, kFsdp);
    const StateMap before = CloneState(other);
    EXPECT_EQ(
        ErrorOf([&] { LoadState(other, StateOf(net)); }),
        "load state of module '': missing: score.bias, score.weight; unexpected: head.bias, head.weight; "
        "expected the same names on both sides, or strict = false");
    EXPECT_TRUE(SameBits(other.body.weight.at_rest().ToLocal(), before.at("body.weight").ToLocal()));
    const LoadStateResult partial = LoadState(other, StateOf(net), {.strict = false});
    EXPECT_THAT(partial.missing, ElementsAre("score.bias", "score.weight"));
    EXPECT_THAT(partial.unexpected, ElementsAre("head.bias", "head.weight"));
    EXPECT_TRUE(SameBits(other.body.weight.at_rest().ToLocal(), net.body.weight.at_rest().ToLocal()));
    EXPECT_TRUE(SameBits(other.score.weight.at_rest().ToLocal(), before.at("score.weight").ToLocal()));
    // Another shape is an error, strict or not; nothing has changed by then.
    const auto head_for_score = [](const std::string& name) {
      return name.substr(0, 5) == "score" ? "head" + name.substr(5) : name;
    };
    EXPECT_EQ(ErrorOf([&] {
                LoadState(other, StateOf(net), {.names = {.rename = head_for_score}, .strict = false});
              }),
              "load state: 'head.weight' is f32[5, 3], expected f32[5, 2] for 'score.weight'");
    // A module out of a larger state.
    Module root;
    Linear head(&root, "classifier", 5, 3);
    Parallelize(root, context, kFsdp);
    EXPECT_EQ(LoadState(head, StateOf(net), {.names = {.prefix = "head."}}), LoadStateResult());
    EXPECT_TRUE(SameBits(head.weight.at_rest().ToLocal(), net.head.weight.at_rest().ToLocal()));
    const auto not_bias = [](const std::string& name) { return name == "bias" ? std::string() : name; };
    const LoadStateResult without =
        LoadState(head, StateOf(net), {.names = {.prefix = "head.", .rename = not_bias}, .strict = false});
    EXPECT_THAT(without.missing, IsEmpty());
    EXPECT_THAT(without.unexpected, ElementsAre("head.bias"));
  });
}

TEST(ModelStateTest, DTypes) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    Net narrow, wide;
    wide.set_name("wide");
    Parallelize(narrow, context, kFsdp, {.dtype = DType::kF32});
    Parallelize(wide, context, kFsdp, {.dtype = DType::kF64});
    EXPECT_EQ(ErrorOf([&] { LoadState(narrow, StateOf(wide)); }),
              "load state: 'body.weight' is f64[5, 5], expected f32[5, 5] for 'body.weight' "
              "(LoadStateOptions::cast takes it)");
    LoadState(narrow, StateOf(wide), {.cast = true});
    EXPECT_TRUE(SameBits(narrow.body.weight.at_rest().ToLocal(),
                         Cast(wide.body.weight.at_rest().Detach(), DType::kF32).ToLocal()));
    // Counts are no floating numbers.
    StateMap state = StateOf(narrow);
    state["norm.num_batches_tracked"] = Full(context, DType::kF32, {}, 1);
    for (const bool cast : {true, false}) {
      EXPECT_EQ(
          ErrorOf([&] { LoadState(narrow, state, {.cast = cast}); }),
          "load state: 'norm.num_batches_tracked' is f32[], expected i64[] for 'norm.num_batches_tracked'");
    }
    state["norm.num_batches_tracked"] = DTensor();
    EXPECT_EQ(ErrorOf([&] { LoadState(narrow, state); }),
              "load state: 'norm.num_batches_tracked' is undefined (default-constructed)");
  });
}

TEST(ModelStateTest, Files) {
  const std::string path = testing::TempDir() + "/weights.safetensors";
  OnMesh("dp=2,tp=2", [&](const IntrusivePtr<MeshContext>& context) {
    Net net;
    Parallelize(net, context, kTp);
    net.norm.running_var->Set(Lay(context, WholeNumbers(DType::kF32, {5}), "[-]"));
    SaveWeights(path, net, {.prefix = "model."}, {{"made_by", "test"}});
  });
  const SafetensorsReader written(path);
  EXPECT_EQ(written.entries().size(), 9u);
  EXPECT_EQ(written.metadata().at("made_by"), "test");
  for (const char* mesh : {"", "dp=2", "dp=3"}) {
    OnMesh(mesh, [&](const IntrusivePtr<MeshContext>& context) {
      for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
        Net net;
        net.set_name("other");
        Parallelize(net, context, context->mesh().num_axes() > 0 ? kFsdp : Plan(), {.dtype = dtype});
        SafetensorsReader reader(path);
        EXPECT_EQ(LoadWeights(reader, net, {.names = {.prefix = "model."}, .cast = true}), LoadStateResult());
        EXPECT_EQ(net.norm.running_var->Value().FullTensor().ToVector<double>(),
                  WholeNumbers(DType::kF64, {5}).ToVector<double>());
        const Tensor whole = reader.Read("model.body.weight", WholeBox({5, 5}), MakeCpuAllocator());
        const Tensor expected = CastTensor(whole, dtype, MakeCpuAllocator());
        EXPECT_TRUE(SameBits(net.body.weight.at_rest().FullTensor(), expected));
        // A part of the file.
        EXPECT_EQ(LoadWeights(reader, net.head, {.names = {.prefix = "model.head."}, .cast = true}),
                  LoadStateResult());
        EXPECT_EQ(ErrorOf([&] { LoadWeights(reader, net.head, {.cast = true}); }),
                  "load state of module 'head': missing: bias, weight; unexpected: model.body.bias, "
                  "model.body.weight, model.head.bias, model.head.weight, model.norm.bias, "
                  "model.norm.num_batches_tracked, model.norm.running_mean, model.norm.running_var, "
                  "model.norm.weight; expected the same names on both sides, or strict = false");
      }
    });
  }
}

// The model says what other ranks have of it. Those that have nothing of a module join in, too.
TEST(ModelStateTest, FilesHaveAllPartsOfAModel) {
  const std::string path = testing::TempDir() + "/parts.safetensors";
  OnMesh("gpus=2", [&](const IntrusivePtr<MeshContext>& context) {
    Net net;
    Parallelize(net, context,
                {{"body", On("gpus", 0, 1)}, {"norm", On("gpus", 0, 1)}, {"head", On("gpus", 1, 1)}});
    SaveWeights(path, net);
    EXPECT_EQ(SafetensorsReader(path).entries().size(), 9u);
    SaveWeights(path, net.head);
    EXPECT_THAT(SafetensorsReader(path).Names(), UnorderedElementsAre("bias", "weight"));
  });
}

// What the model has is refused, whatever the options; what it has not is unexpected, as any other.
TEST(ModelStateTest, ADtypeThatWeftLacksIsAnErrorWhereItIsWanted) {
  class Pair : public Module {
   public:
    Linear whole{this, "whole", 2, 2};
    Linear product{this, "product", 2, 2, {.bias = false, .weight = Initializer::Normal(0, 1)}};
  };
  const std::string header = R"({"weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
                             R"("bias":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[16,18]}})";
  const uint64_t length = header.size();
  const std::string path = testing::TempDir() + "/other_dtype.safetensors";
  std::ofstream(path, std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&length), sizeof(length)) << header << std::string(18, 0);
  OnMesh("dp=2", [&](const IntrusivePtr<MeshContext>& context) {
    Pair pair;
    Parallelize(pair, context, kFsdp);
    SafetensorsReader reader(path);
    EXPECT_THAT(ErrorOf([&] { LoadWeights(reader, pair.whole, {.strict = false}); }),
                HasSubstr("tensor 'bias' has the dtype F8_E4M3, which Weft lacks"));
    EXPECT_EQ(ErrorOf([&] { LoadWeights(reader, pair.product); }),
              "load state of module 'product': missing: none; unexpected: bias; expected the same names on "
              "both sides, or strict = false");
    EXPECT_EQ(LoadWeights(reader, pair.product, {.strict = false}),
              (LoadStateResult{.missing = {}, .unexpected = {"bias"}}));
    EXPECT_EQ(pair.product.weight.at_rest().FullTensor().ToVector<float>(), std::vector<float>(4, 0));
  });
}

// A checkpoint's optimizer is not looked at, but what the module calls so itself is its own.
TEST(ModelStateTest, AModuleNamedOptimizerIsLoaded) {
  class Learned : public Module {
   public:
    Linear optimizer{this, "optimizer", 2, 2, {.weight = Initializer::Normal(0, 1)}};
  };
  const std::string path = testing::TempDir() + "/optimizer.safetensors";
  const Tensor weight = WholeNumbers(DType::kF32, {2, 2});
  OnMesh("dp=2", [&](const IntrusivePtr<MeshContext>& context) {
    Learned from;
    Parallelize(from, context, kFsdp);
    from.optimizer.weight.Load(Lay(context, weight, "[-, -]"));
    std::vector<std::pair<std::string, DTensor>> tensors = {
        {"optimizer.updates", Full(context, DType::kI64, {}, 3)}};
    for (const auto& [name, value] : StateOf(from)) tensors.push_back({name, value});
    SaveTensors(path, tensors, {});
  });
  OnMesh("dp=2", [&](const IntrusivePtr<MeshContext>& context) {
    Learned to;
    Parallelize(to, context, kFsdp);
    SafetensorsReader reader(path);
    EXPECT_EQ(LoadWeights(reader, to), LoadStateResult());
    EXPECT_TRUE(SameBits(to.optimizer.weight.at_rest().FullTensor(), weight));
    // The same by a prefix.
    FillTensor(to.optimizer.weight.at_rest().ToLocal(), 0);
    EXPECT_EQ(LoadWeights(reader, to.optimizer, {.names = {.prefix = "optimizer."}}), LoadStateResult());
    EXPECT_TRUE(SameBits(to.optimizer.weight.at_rest().FullTensor(), weight));
  });
}

}  // namespace
}  // namespace weft

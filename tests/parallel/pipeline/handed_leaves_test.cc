// Leaves that the first stage hands on as they are, a parameter or an input that wants a gradient: they get it under every
// schedule, and forward alone takes them, too.

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "parallel/styles.h"
#include "runtime/launch/run_ranks.h"
#include "tests/parallel/pipeline/products.h"

namespace weft {
namespace {

constexpr int kMicrobatches = 3;

// Two products with a learned query before each: the first segment reads it, and hands it on beside what it has made.
class Queried : public Products {
 public:
  Queried() : Products(2) {}
  Parameter query{this, "query", {.shape = {kRows, kDim}, .initializer = Initializer::Normal(0, 1)}};

 protected:
  std::vector<Segment> MakeSegments() override {
    return {
        {.modules = {layers[0].get()},
         .parameters = {&query},
         .cost = 1,
         .run = [this](const DTensors& x) -> DTensors {
           const DTensor value = query.Value();
           return {(*layers[0])(x[0] + value), value};
         }},
        {.modules = {layers[1].get()},
         .cost = 1,
         .run = [this](const DTensors& x) -> DTensors { return {(*layers[1])(x[0] + x[1])}; }},
    };
  }
};

// A product, behind a segment that hands its input on as it is.
class Passing : public Products {
 public:
  Passing() : Products(1) {}

 protected:
  std::vector<Segment> MakeSegments() override {
    return {
        {.modules = {&nothing_}, .cost = 1, .run = [](const DTensors& x) -> DTensors { return {x[0]}; }},
        {.modules = {layers[0].get()},
         .cost = 1,
         .run = [this](const DTensors& x) -> DTensors { return {(*layers[0])(x[0])}; }},
    };
  }

 private:
  Half nothing_{this, "layers.1"};  // for the plan to name; not called
};

// Microbatches whose inputs want a gradient.
std::vector<Microbatch> Parts(const IntrusivePtr<MeshContext>& context) {
  std::vector<Microbatch> parts = ProductParts(context, kMicrobatches);
  for (Microbatch& part : parts) part.inputs[0] = part.inputs[0].RequiresGrad();
  return parts;
}

// Of parameters by path, of inputs by "input" and the microbatch's number.
using Gradients = std::map<std::string, std::vector<double>>;

// Those that there are; without a schedule, of one device.
template <class Model>
Gradients GradientsOf(const std::string& mesh_text, const Plan& plan, const std::string& schedule) {
  Gradients gradients;
  std::mutex mutex;
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  const auto run = [&](World& world) {
    Model model;
    Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
    const std::vector<Microbatch> parts = Parts(model.context());
    if (schedule.empty()) {
      for (const Microbatch& part : parts) Backward(model.LossOf({model(part.inputs[0])}, part.targets).sum);
    } else {
      const ScheduleSize size = {.ranks = 2, .microbatches = kMicrobatches};
      PipelineExecutor(model, GenerateSchedule(schedule, size)).Run(parts, One(model.context()));
    }
    Gradients mine;
    const auto note = [&](const std::string& name, const DTensor& gradient) {
      if (gradient.defined()) mine[name] = gradient.FullTensor().ToVector<double>();
    };
    for (const Parameter* parameter : model.AllParameters()) note(parameter->path(), parameter->grad());
    for (int i = 0; i < kMicrobatches; ++i) note(absl::StrCat("input ", i), parts[i].inputs[0].grad());
    const std::lock_guard<std::mutex> lock(mutex);
    gradients.merge(mine);
  };
  RunRanks(static_cast<int>(mesh.num_ranks()), run, {.comm_timeout = std::chrono::seconds(30)});
  return gradients;
}

template <class Model>
void ExpectGradientsOfOneDevice(size_t num_gradients) {
  const Gradients expected = GradientsOf<Model>("", {}, "");
  ASSERT_EQ(expected.size(), num_gradients);
  const Plan split = StagedPlan().Merge(Plan({{"", FullyShard("dp")}}));
  for (const char* schedule : {"1f1b", "zb_h1"}) {
    for (const char* mesh : {"pp=2", "pp=2, dp=2"}) {
      const bool is_split = DeviceMesh::Parse(mesh).FindAxis("dp") >= 0;
      const Gradients actual = GradientsOf<Model>(mesh, is_split ? split : StagedPlan(), schedule);
      for (const auto& [name, gradient] : expected) {
        SCOPED_TRACE(absl::StrCat(schedule, " on ", mesh, ", ", name));
        ASSERT_EQ(actual.count(name), 1u);
        EXPECT_THAT(actual.at(name), testing::Pointwise(testing::DoubleNear(1e-12), gradient));
      }
    }
  }
}

// Where backward is cut in two, too: all of it is W's, with what else the stage makes of the leaf.
TEST(HandedLeavesTest, AParameterGetsItsGradient) { ExpectGradientsOfOneDevice<Queried>(3 + kMicrobatches); }
TEST(HandedLeavesTest, AnInputGetsItsGradient) { ExpectGradientsOfOneDevice<Passing>(1 + kMicrobatches); }

template <class Model>
void ExpectForwardAlone() {
  const auto run = [](World& world) {
    Model model;
    Parallelize(model, world, DeviceMesh::Parse("pp=2"), StagedPlan(), {.dtype = DType::kF64});
    PipelineExecutor pipeline(model, GenerateSchedule("1f1b", {.ranks = 2, .microbatches = kMicrobatches}));
    const std::vector<Microbatch> parts = Parts(model.context());
    const DTensor total = One(model.context());
    const double loss = pipeline.Run(parts, total).Item();
    EXPECT_EQ(pipeline.ForwardLoss(parts).sum.Item(), loss);
    const DTensors outputs = pipeline.ForwardOutputs(parts[0].inputs);
    ASSERT_EQ(outputs.size(), 1u);
    EXPECT_FALSE(outputs[0].requires_grad());
    EXPECT_EQ(outputs[0].shape(), Shape({kRows, kDim}));
    EXPECT_EQ(pipeline.Run(parts, total).Item(), loss);
  };
  RunRanks(2, run, {.comm_timeout = std::chrono::seconds(30)});
}

TEST(HandedLeavesTest, ForwardAloneTakesAParameter) { ExpectForwardAlone<Queried>(); }
TEST(HandedLeavesTest, ForwardAloneTakesAnInput) { ExpectForwardAlone<Passing>(); }

}  // namespace
}  // namespace weft

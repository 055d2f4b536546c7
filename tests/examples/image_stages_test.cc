// The models of images in stages: losses, gradients and running statistics are those of one device.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "examples/images/image_training.h"
#include "examples/images/resnet.h"
#include "examples/images/vit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "runtime/launch/run_ranks.h"
#include "tests/dtensor/sharded_values.h"

namespace weft {
namespace {

constexpr int64_t kExtent = 8;
constexpr int64_t kClasses = 5;

ImageProgram VitProgram() {
  return {.name = "vit",
          .summary = "",
          .make_model = [](const ImageSet&, int64_t classes) -> std::unique_ptr<SegmentedModule> {
            return std::make_unique<Vit>(VitConfig{
                .classes = classes, .rows = kExtent, .columns = kExtent, .dim = 16, .dropout = 0.1});
          },
          .tensor_plan = VitTensorPlan};
}

ImageProgram ResNetProgram() {
  return {.name = "resnet",
          .summary = "",
          .make_model = [](const ImageSet&, int64_t classes) -> std::unique_ptr<SegmentedModule> {
            return std::make_unique<ResNet>(ResNetConfig{.classes = classes, .width = 4});
          },
          .tensor_plan = ResNetTensorPlan};
}

// Microbatches of so many images, split over axis dp if there is one.
std::vector<Microbatch> Parts(const IntrusivePtr<MeshContext>& context, const std::vector<int64_t>& rows) {
  const int dp = context->mesh().FindAxis("dp");
  const auto spread = [&](const Tensor& whole) {
    Layout layout(whole.ndim(), context->mesh().num_axes());
    return DTensor::Distribute(context, whole, dp < 0 ? layout : layout.WithShard(dp, 0));
  };
  int64_t sum = 0;
  for (const int64_t each : rows) sum += each;
  // All rows are drawn at once, so that they do not depend on how they are divided.
  const std::vector<double> pixels = RandomF64({sum, 1, kExtent, kExtent}, /*seed=*/7).ToVector<double>();
  std::vector<Microbatch> parts;
  int64_t first = 0;
  for (const int64_t count : rows) {
    const auto begin = pixels.begin() + first * kExtent * kExtent;
    const std::vector<double> own(begin, begin + count * kExtent * kExtent);
    std::vector<int32_t> labels;
    for (int64_t i = first; i < first + count; ++i) labels.push_back(static_cast<int32_t>(i * 3 % kClasses));
    parts.push_back({.inputs = {spread(Tensor::FromValues<double>({count, 1, kExtent, kExtent}, own))},
                     .targets = spread(Tensor::FromValues<int32_t>({count}, labels)),
                     .batch_offset = first});
    first += count;
  }
  return parts;
}

struct Outcome {
  double loss = 0;
  std::map<std::string, std::vector<double>> values = {};  // gradients and running statistics, by path
};

void TakeValues(Module& model, Outcome* outcome) {
  for (const Parameter* parameter : model.AllParameters()) {
    outcome->values[parameter->path()] = parameter->grad().FullTensor().ToVector<double>();
  }
  for (ModuleBuffer* buffer : model.AllBuffers()) {
    const DTensor value = Cast(buffer->Value(), DType::kF64);
    outcome->values[buffer->path()] = value.FullTensor().ToVector<double>();
  }
}

DTensor TotalOf(const IntrusivePtr<MeshContext>& context, const std::vector<int64_t>& rows) {
  double total = 0;
  for (const int64_t each : rows) total += static_cast<double>(each);
  return Full(context, DType::kF64, Shape(), total);
}

Outcome OneDevice(const ImageProgram& program, const std::vector<int64_t>& rows) {
  Outcome outcome;
  RunRanks(1, [&](World& world) {
    const std::unique_ptr<SegmentedModule> model = program.make_model({}, kClasses);
    const auto context = Bind(world, DeviceMesh());
    Materialize(*model, context, {.dtype = DType::kF64});
    context->state().set_step(3);
    for (const Microbatch& part : Parts(context, rows)) {
      const BatchOffsetGuard offset(context->state(), part.batch_offset);
      const DTensor loss =
          model->LossOf({(*model)(part.inputs[0])}, part.targets).Over(TotalOf(context, rows));
      Backward(loss);
      outcome.loss += loss.Item();
    }
    TakeValues(*model, &outcome);
  });
  return outcome;
}

Outcome InStages(const ImageProgram& program, const std::string& schedule_name, const std::string& mesh_text,
                 const std::string& data_plan, const std::vector<int64_t>& rows) {
  Outcome outcome;
  std::mutex mutex;
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  RunRanks(static_cast<int>(mesh.num_ranks()), [&](World& world) {
    const std::unique_ptr<SegmentedModule> model = program.make_model({}, kClasses);
    const PipelineSchedule schedule = GenerateSchedule(
        schedule_name,
        {.ranks = static_cast<int>(mesh.axis_size(0)), .microbatches = static_cast<int>(rows.size())});
    const auto context = Parallelize(*model, world, mesh, ImagePlan(mesh, data_plan, program, schedule),
                                     {.dtype = DType::kF64});
    context->state().set_step(3);
    PipelineExecutor pipeline(*model, schedule);
    const double loss = pipeline.Run(Parts(model->context(), rows), TotalOf(model->context(), rows)).Item();
    Outcome mine;
    TakeValues(*model, &mine);
    const std::lock_guard<std::mutex> lock(mutex);
    outcome.loss = loss;
    outcome.values.insert(mine.values.begin(), mine.values.end());
  });
  return outcome;
}

// One line for whatever differs by more than 1e-12.
std::string Differences(const Outcome& a, const Outcome& expected) {
  std::vector<std::string> lines;
  if (!(std::abs(a.loss - expected.loss) <= 1e-12)) lines.push_back(absl::StrCat("loss ", a.loss));
  EXPECT_EQ(a.values.size(), expected.values.size());
  for (const auto& [path, values] : expected.values) {
    const auto found = a.values.find(path);
    double most = found != a.values.end() && found->second.size() == values.size() ? 0 : INFINITY;
    for (size_t i = 0; most < INFINITY && i < values.size(); ++i) {
      most = std::max(most, std::abs(found->second[i] - values[i]));
    }
    if (!(most <= 1e-12)) lines.push_back(absl::StrCat(path, " by ", most));
  }
  return absl::StrJoin(lines, "\n");
}

struct Way {
  const char* schedule;
  const char* mesh;
  const char* data_plan;
};

constexpr Way kWays[] = {
    {"1f1b", "pp=2", "ddp"},
    {"zb_h1", "pp=2,tp=2", "ddp"},
    {"zbv", "pp=2,dp=2", "ddp"},
    {"interleaved", "pp=2,dp=2", "fsdp"},
};

// Its norms are of one image, and dropout goes by the place in the batch: how a batch is divided makes no difference.
TEST(ImageStagesTest, AVitIsThatOfOneDevice) {
  const Outcome expected = OneDevice(VitProgram(), {9});
  EXPECT_GT(expected.loss, 0.5);
  for (const Way& way : kWays) {
    const Outcome outcome = InStages(VitProgram(), way.schedule, way.mesh, way.data_plan, {2, 3, 1, 3});
    EXPECT_EQ(Differences(outcome, expected), "") << way.schedule << " " << way.mesh;
  }
}

// Batch norms have the statistics of a microbatch, wherever its images lie: one device has to see the same microbatches.
TEST(ImageStagesTest, AResNetIsThatOfOneDevice) {
  const Outcome whole = OneDevice(ResNetProgram(), {9});
  const Outcome expected = OneDevice(ResNetProgram(), {2, 3, 1, 3});
  EXPECT_GT(std::abs(whole.loss - expected.loss), 1e-6);
  EXPECT_EQ(expected.values.at("stem.1.num_batches_tracked"), std::vector<double>{4});
  for (const Way& way : kWays) {
    const Outcome outcome = InStages(ResNetProgram(), way.schedule, way.mesh, way.data_plan, {2, 3, 1, 3});
    EXPECT_EQ(Differences(outcome, expected), "") << way.schedule << " " << way.mesh;
  }
  EXPECT_EQ(Differences(InStages(ResNetProgram(), "1f1b", "pp=2", "ddp", {9}), whole), "");
}

TEST(ImageStagesTest, BlocksAreDividedByTheirProducts) {
  const auto firsts = [](const ImageProgram& program, const char* mesh_text) {
    const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
    const std::unique_ptr<SegmentedModule> model = program.make_model({}, kClasses);
    const PipelineSchedule schedule =
        GenerateSchedule("1f1b", {.ranks = static_cast<int>(mesh.axis_size(0)), .microbatches = 4});
    return ResolvePlan(*model, mesh, ImagePlan(mesh, "ddp", program, schedule)).pipeline->first_segments;
  };
  EXPECT_THAT(firsts(VitProgram(), "pp=2"), testing::ElementsAre(0, 3, 6));
  EXPECT_THAT(firsts(ResNetProgram(), "pp=2"), testing::ElementsAre(0, 3, 6));
  EXPECT_THAT(firsts(ResNetProgram(), "pp=4"), testing::ElementsAre(0, 2, 3, 4, 6));
}

}  // namespace
}  // namespace weft

// PyTorch's files run as they are: of computing alone, lowered, and lowered with waits.

#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/autograd/backward.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/checker.h"
#include "parallel/pipeline/executor.h"
#include "parallel/styles.h"
#include "runtime/launch/run_ranks.h"
#include "tests/parallel/pipeline/golden_schedules.h"
#include "tests/parallel/pipeline/products.h"

namespace weft {
namespace {

// Loss and gradients, by path; "" is the loss.
using Outcome = std::map<std::string, std::vector<double>>;

Outcome OneDevice(int num_layers, int microbatches) {
  Outcome outcome;
  RunRanks(1, [&](World& world) {
    Products model(num_layers);
    const auto context = Bind(world, DeviceMesh());
    Materialize(model, context, {.dtype = DType::kF64});
    double loss = 0;
    for (const Microbatch& part : ProductParts(context, microbatches)) {
      const DTensor of_part = model.LossOf({model(part.inputs[0])}, part.targets).sum;
      Backward(of_part);
      loss += of_part.Item();
    }
    outcome[""] = {loss};
    for (const Parameter* parameter : model.AllParameters()) {
      outcome[parameter->path()] = parameter->grad().FullTensor().ToVector<double>();
    }
  });
  return outcome;
}

Outcome RunStages(const PipelineSchedule& schedule) {
  Outcome outcome;
  std::mutex mutex;
  RunRanks(schedule.num_ranks(), [&](World& world) {
    Products model(schedule.num_stages());
    const int chunks = schedule.num_chunks();
    const bool is_v = chunks == 2 && schedule.stage_rank == VPlacement(schedule.num_ranks());
    const Plan plan = {
        {"layers.*", Pipeline("pp", {.chunks = chunks, .order = is_v ? StageOrder::kV : StageOrder::kLoop})}};
    const DeviceMesh mesh = DeviceMesh::Parse(absl::StrCat("pp=", schedule.num_ranks()));
    Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
    PipelineExecutor pipeline(model, schedule);
    EXPECT_EQ(CheckSchedule(pipeline.schedule()).error, "") << schedule.name;
    const DTensor total = Full(model.context(), DType::kF64, Shape(), 1);
    const double loss = pipeline.Run(ProductParts(model.context(), schedule.num_microbatches), total).Item();
    const std::lock_guard<std::mutex> lock(mutex);
    outcome[""] = {loss};
    for (const Parameter* parameter : model.AllParameters()) {
      outcome[parameter->path()] = parameter->grad().FullTensor().ToVector<double>();
    }
  });
  return outcome;
}

TEST(GoldenRunTest, EveryFileRuns) {
  int num_run = 0;
  for (const GoldenSchedule& golden : GoldenSchedules()) {
    std::vector<std::string> forms = {""};
    if (golden.has_lowered) forms.push_back("-comms");
    if (golden.has_waits) forms.push_back("-waits");
    Outcome expected;
    for (const std::string& form : forms) {
      const PipelineSchedule schedule = ReadGolden(golden, form);
      const std::string what = golden.file + form;
      if (expected.empty()) expected = OneDevice(schedule.num_stages(), schedule.num_microbatches);
      const Outcome outcome = RunStages(schedule);
      ASSERT_EQ(outcome.size(), expected.size()) << what;
      for (const auto& [path, values] : expected) {
        const std::vector<double>& here = outcome.at(path);
        ASSERT_EQ(here.size(), values.size()) << what << " " << path;
        for (size_t i = 0; i < values.size(); ++i) {
          ASSERT_NEAR(here[i], values[i], 1e-11 * (1 + std::abs(values[i]))) << what << " " << path;
        }
      }
      ++num_run;
    }
  }
  EXPECT_GE(num_run, 40);
}

}  // namespace
}  // namespace weft

// What every optimizer has to do: the update of one device under any layout, state that is saved, resumed
// bit for bit and loaded on another mesh, and steps that skip themselves. Each with a mistake that is seen.

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/checkpoint/checkpoint.h"
#include "dtensor/functions.h"
#include "dtensor/optim/weight_average.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "tests/dtensor/optim/optimizer_cases.h"
#include "tests/dtensor/sharded_values.h"

namespace weft {
namespace {

using Split = OptimizedModel::Split;
using Context = IntrusivePtr<MeshContext>;

struct Setting {
  const char* mesh;
  Split split = Split::kNone;
  ParameterMemory memory = {};
};

constexpr ParameterMemory kStateOnHost = {.state_on_host = true};
constexpr ParameterMemory kAllOnHost = {.state_on_host = true, .value_on_host = true};

// Over 4 ranks some pieces of 5 rows are of one row, of 3 columns one is empty; over 8 some of 7 elements
// are.
const Setting kSettings[] = {{""},
                             {"a=2"},
                             {"a=2", Split::kFirst},
                             {"a=4", Split::kLast},
                             {"a=2,b=2", Split::kFirst},
                             {"a=4,b=2", Split::kLast},
                             {"a=3", Split::kStateAlone},
                             {"", Split::kNone, kAllOnHost},
                             {"a=2", Split::kFirst, kStateOnHost},
                             {"a=4", Split::kLast, kAllOnHost},
                             {"a=3", Split::kStateAlone, kStateOnHost},
                             {"a=2", Split::kStateAlone, kAllOnHost}};

void Steps(OptimizedModel& model, Optimizer& optimizer, int first, int last) {
  for (int step = first; step <= last; ++step) {
    model.SetGradients(step);
    optimizer.Step(0.1 / step, Full(model.context(), DType::kF64, {}, 0.5));
  }
}

// Parameters after five steps, as rank 0 has them.
std::vector<double> Trained(const OptimizerCase& which, const Setting& setting) {
  std::vector<double> values;
  OnMesh(setting.mesh, [&](const Context& context) {
    OptimizedModel model;
    model.Lay(context, setting.split, setting.memory);
    const std::unique_ptr<Optimizer> optimizer = which.make(model);
    Steps(model, *optimizer, 1, 5);
    const std::vector<double> here = model.Values();
    if (context->world().rank() == 0) values = here;
  });
  return values;
}

double LargestDifference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
  }
  return largest;
}

TEST(OptimizerStateTest, AnyLayoutIsOneDevice) {
  for (const OptimizerCase& which : OptimizerCases()) {
    const std::vector<double> expected = Trained(which, {""});
    for (const Setting& setting : kSettings) {
      EXPECT_LE(LargestDifference(Trained(which, setting), expected), 1e-13)
          << which.name << " on " << setting.mesh << " " << static_cast<int>(setting.split);
    }
  }
}

// The mistake: each rank takes its piece for the whole parameter. What goes element by element does not mind.
TEST(OptimizerStateTest, PiecesTakenForWholesAreSeen) {
  for (const OptimizerCase& which : OptimizerCases()) {
    OnMesh("a=2", [&](const Context& context) {
      OptimizedModel right({.matrix = 4, .qkv = 6, .vector = 8});
      right.Lay(context, Split::kFirst);
      OptimizedModel wrong({.matrix = 2, .qkv = 3, .vector = 4});
      wrong.Lay(context, Split::kNone);  // so it says: each rank has other values
      const auto piece = [&](const DTensor& x, const Parameter& of) {
        const Layout whole(x.ndim(), context->mesh().num_axes());
        return DTensor::FromLocal(context, x.ToLocal(), whole, of.spec().shape);
      };
      const std::vector<Parameter*> from = right.AllParameters(), to = wrong.AllParameters();
      for (size_t i = 0; i < to.size(); ++i) to[i]->Load(piece(from[i]->at_rest(), *to[i]));
      const std::unique_ptr<Optimizer> right_optimizer = which.make(right),
                                       wrong_optimizer = which.make(wrong);
      for (int step = 1; step <= 3; ++step) {
        right.SetGradients(step);
        for (size_t i = 0; i < to.size(); ++i) to[i]->SetGrad(piece(from[i]->grad(), *to[i]));
        right_optimizer->Step(0.1);
        wrong_optimizer->Step(0.1);
      }
      double difference = 0;
      for (size_t i = 0; i < to.size(); ++i) {
        difference = std::max(difference, LargestDifference(to[i]->at_rest().ToLocal().ToVector<double>(),
                                                            from[i]->at_rest().ToLocal().ToVector<double>()));
      }
      EXPECT_EQ(difference > 1e-4, which.sees_whole) << which.name << " " << difference;
      EXPECT_EQ(difference == 0, !which.sees_whole) << which.name << " " << difference;
    });
  }
}

// The table of docs/optimizers.md: what an update sends where dim 0 is split, and the elements of state beside the count.
TEST(OptimizerStateTest, KeepsAndSendsWhatThePageSays) {
  struct Row {
    const char* sends;
    int64_t state;  // elements; of [5, 3], [6, 3, 2, 2] and [7]
  };
  const char* const there_and_back =
      "all_to_all a param, all_to_all a param, all_to_all a param, all_to_all a param";
  const Row adafactor = {"all_reduce a norm, all_reduce a norm, all_reduce a norm", 5 + 3 + 18 * (2 + 2) + 7};
  const std::map<std::string, Row> rows = {
      {"sgd", {"", 0}},
      {"momentum", {"", 15 + 72 + 7}},
      {"nesterov", {"", 15 + 72 + 7}},
      {"adamw", {"", 2 * (15 + 72 + 7)}},
      {"adamw_8bit",
       {"", 2 * (15 + 5 + 72 + 6 + 7)}},  // a scale per row; the vector has too few elements for codes
      {"lion", {"", 15 + 72 + 7}},
      {"lamb", {"all_reduce a norm", 2 * (15 + 72 + 7)}},
      {"adafactor", adafactor},
      {"adafactor_without_decay", adafactor},
      {"muon", {there_and_back, 15 + 72 + 2 * 7}},
  };
  for (const OptimizerCase& which : OptimizerCases()) {
    OnMesh("a=2", [&](const Context& context) {
      OptimizedModel model;
      model.Lay(context, Split::kFirst);
      const std::unique_ptr<Optimizer> optimizer = which.make(model);
      model.SetGradients(1);
      context->world().ledger().Clear();
      optimizer->Step(0.1);
      const Row& row = rows.at(which.name);
      EXPECT_EQ(LedgerText(*context), row.sends) << which.name;
      int64_t elements = 0;
      for (const auto& [name, tensor] : optimizer->State()) elements += tensor.shape().num_elements();
      EXPECT_EQ(elements - 1, row.state) << which.name;
    });
  }
}

using Values = std::map<std::string, std::vector<double>>;

Values WholeValues(const std::vector<std::pair<std::string, DTensor>>& tensors) {
  Values values;
  for (const auto& [name, tensor] : tensors) values[name] = tensor.FullTensor().ToVector<double>();
  return values;
}

// Runs `body` on a model and its optimizer on every rank; what rank 0 returns.
template <class Result>
Result RunModel(const OptimizerCase& which, const Setting& setting,
                const std::function<Result(OptimizedModel&, Optimizer&)>& body) {
  Result result;
  OnMesh(setting.mesh, [&](const Context& context) {
    OptimizedModel model;
    model.Lay(context, setting.split, setting.memory);
    const std::unique_ptr<Optimizer> optimizer = which.make(model);
    Result here = body(model, *optimizer);
    if (context->world().rank() == 0) result = std::move(here);
  });
  return result;
}

TEST(OptimizerStateTest, ResumesBitForBitAndLoadsOnAnyMesh) {
  for (const OptimizerCase& which : OptimizerCases()) {
    const std::string path = testing::TempDir() + "/" + which.name + ".safetensors";
    for (const Setting& from : {Setting{"a=2,b=2", Split::kFirst}, Setting{"a=4", Split::kLast}}) {
      Values saved;
      const auto train_and_save = [&](OptimizedModel& model, Optimizer& optimizer) {
        Steps(model, optimizer, 1, 3);
        const auto tensors = CheckpointTensors(model, optimizer);
        SaveTensors(path, tensors, {});
        const Values here = WholeValues(tensors);
        if (model.context()->world().rank() == 0) saved = here;
        Steps(model, optimizer, 4, 6);
        return model.Values();
      };
      const std::vector<double> expected = RunModel<std::vector<double>>(which, from, train_and_save);
      EXPECT_EQ(saved.at("optimizer.updates"), std::vector<double>{3});
      for (const Setting& to : kSettings) {
        Values loaded;
        const auto load_and_train = [&](OptimizedModel& model, Optimizer& optimizer) {
          SafetensorsReader reader(path);
          LoadParameters(reader, model);
          LoadOptimizerState(reader, optimizer);
          const Values here = WholeValues(CheckpointTensors(model, optimizer));
          if (model.context()->world().rank() == 0) loaded = here;
          Steps(model, optimizer, 4, 6);
          return model.Values();
        };
        const std::vector<double> resumed = RunModel<std::vector<double>>(which, to, load_and_train);
        EXPECT_EQ(loaded, saved) << which.name << " on " << to.mesh;
        EXPECT_LE(LargestDifference(resumed, expected), 1e-13) << which.name << " on " << to.mesh;
        if (std::string(to.mesh) == from.mesh && to.split == from.split) {
          EXPECT_EQ(resumed, expected) << which.name << " on " << to.mesh;
        }
      }
      // The mistake: the state is forgotten.
      const auto forget = [&](OptimizedModel& model, Optimizer& optimizer) {
        SafetensorsReader reader(path);
        LoadParameters(reader, model);
        Steps(model, optimizer, 4, 6);
        return model.Values();
      };
      EXPECT_EQ(LargestDifference(RunModel<std::vector<double>>(which, from, forget), expected) > 1e-4,
                which.has_state)
          << which.name;
    }
  }
}

TEST(OptimizerStateTest, AScaleThatIsNotFiniteChangesNothing) {
  for (const OptimizerCase& which : OptimizerCases()) {
    for (const Setting& setting : {Setting{""}, Setting{"a=2,b=2", Split::kFirst}}) {
      RunModel<int>(which, setting, [&](OptimizedModel& model, Optimizer& optimizer) {
        Steps(model, optimizer, 1, 2);
        const Values before = WholeValues(CheckpointTensors(model, optimizer));
        for (const double scale : {NAN, INFINITY}) {
          model.SetGradients(3);
          optimizer.Step(0.1, Full(model.context(), DType::kF32, {}, scale));
          EXPECT_EQ(WholeValues(CheckpointTensors(model, optimizer)), before) << which.name;
        }
        Steps(model, optimizer, 3, 3);
        EXPECT_NE(WholeValues(CheckpointTensors(model, optimizer)), before) << which.name;
        return 0;
      });
    }
  }
}

TEST(WeightAverageTest, IsSavedResumedAndLoadedOnAnyMesh) {
  const OptimizerCase& sgd = OptimizerCases()[0];
  const std::string path = testing::TempDir() + "/average.safetensors";
  for (const WeightAverageOptions& options : {WeightAverageOptions{.decay = 0.75}, WeightAverageOptions{}}) {
    const auto steps = [&](OptimizedModel& model, Optimizer& optimizer, WeightAverage& average, int first,
                           int last) {
      for (int step = first; step <= last; ++step) {
        Steps(model, optimizer, step, step);
        average.Update();
      }
    };
    const Setting from = {"a=2,b=2", Split::kFirst};
    const Values expected = RunModel<Values>(sgd, from, [&](OptimizedModel& model, Optimizer& optimizer) {
      WeightAverage average(model.AllParameters(), options);
      steps(model, optimizer, average, 1, 3);
      auto tensors = CheckpointTensors(model, optimizer);
      for (const auto& entry : average.State()) tensors.push_back(entry);
      SaveTensors(path, tensors, {});
      steps(model, optimizer, average, 4, 6);
      return WholeValues(average.State());
    });
    EXPECT_EQ(expected.at("average.count"), std::vector<double>{6});
    for (const Setting& to : kSettings) {
      const Values resumed = RunModel<Values>(sgd, to, [&](OptimizedModel& model, Optimizer& optimizer) {
        WeightAverage average(model.AllParameters(), options);
        SafetensorsReader reader(path);
        LoadParameters(reader, model);
        LoadTensors(reader, average.State());
        steps(model, optimizer, average, 4, 6);
        return WholeValues(average.State());
      });
      EXPECT_EQ(resumed, expected) << to.mesh;  // element by element
    }
    const Values forgotten = RunModel<Values>(sgd, from, [&](OptimizedModel& model, Optimizer& optimizer) {
      WeightAverage average(model.AllParameters(), options);
      SafetensorsReader reader(path);
      LoadParameters(reader, model);
      steps(model, optimizer, average, 4, 6);
      return WholeValues(average.State());
    });
    EXPECT_GT(LargestDifference(forgotten.at("average.matrix"), expected.at("average.matrix")), 1e-4);
  }
}

// The second memory's folder may be one in which no file can be made, as long as nothing goes there.
TEST(WeightAverageTest, MakesNoSecondMemoryForNothing) {
  const auto body = [](World& world) {
    OptimizedModel model;
    model.Lay(Bind(world, DeviceMesh::Parse("")), Split::kNone);
    WeightAverage average(model.AllParameters());
    average.Update();
    const std::vector<double> of_vector = model.vector.at_rest().FullTensor().ToVector<double>();
    EXPECT_EQ(WholeValues(average.State()).at("average.vector"), of_vector);
  };
  RunRanks(1, body, {.device_options = {.offload_folder = "/nowhere/at/all"}});
}

TEST(WeightAverageTest, SwapsWithTheModelAndBack) {
  for (const Setting& setting : kSettings) {
    RunModel<int>(OptimizerCases()[0], setting, [&](OptimizedModel& model, Optimizer& optimizer) {
      WeightAverage average(model.AllParameters());
      const auto error = [](const std::function<void()>& function) { return ErrorOf(function); };
      EXPECT_EQ(error([&] { average.SwapWithModel(); }),
                "WeightAverage::SwapWithModel: no Update was made yet");
      const std::vector<double> first = model.Values();
      average.Update();
      Steps(model, optimizer, 1, 1);
      const std::vector<double> second = model.Values();
      average.Update();
      average.SwapWithModel();
      std::vector<double> mean;
      for (size_t i = 0; i < first.size(); ++i) mean.push_back(first[i] + (second[i] - first[i]) * 0.5);
      EXPECT_LE(LargestDifference(model.Values(), mean), 1e-15);
      EXPECT_EQ(error([&] { average.Update(); }),
                "WeightAverage::Update: the model has the averages; call SwapWithModel again first");
      EXPECT_EQ(error([&] { average.State(); }),
                "WeightAverage::State: the model has the averages; call SwapWithModel again first");
      average.SwapWithModel();
      EXPECT_EQ(model.Values(), second);
      EXPECT_LE(
          LargestDifference(WholeValues(average.State()).at("average.vector"), {mean.end() - 7, mean.end()}),
          1e-15);
      EXPECT_EQ(error([&] { WeightAverage(model.AllParameters(), {.decay = 1.5}); }),
                "WeightAverage: expected a decay between 0 and 1, got 1.5");
      // A stage or part without parameters.
      WeightAverage none({});
      none.Update();
      none.SwapWithModel();
      EXPECT_TRUE(none.is_swapped());
      none.SwapWithModel();
      EXPECT_TRUE(none.State().empty());
      return 0;
    });
  }
}

}  // namespace
}  // namespace weft

// Training with compressed gradients: what it moves, where it gets, and that its state is state.

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/checkpoint/checkpoint.h"
#include "dtensor/inspect/comm_report.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/optim/sgd.h"
#include "examples/gpt/gpt_plan.h"
#include "gtest/gtest.h"
#include "mesh/shard_math.h"
#include "parallel/compression/communication_state.h"
#include "parallel/compression/compressor.h"
#include "parallel/parallelize.h"
#include "parallel/trainer.h"
#include "runtime/base/float16.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/parallel/compression/compressed_training.h"
#include "tests/parallel/training_run.h"

namespace weft {
namespace {

constexpr int64_t kBatch = 8, kSequence = 15;
constexpr const char* kMethods[] = {"bf16",         "f16",         "int8",
                                    "onebit",       "topk(0.1)",   "topk(0.1, momentum=0.5)",
                                    "randomk(0.2)", "powersgd(2)", "powersgd(2, start_step=3)"};

// A hook of a user's own, declared here as a program's file would: the exact sum, in f64 and in rank order.
class SumInF64 final : public Compressor {
 public:
  explicit SumInF64(double factor) : factor_(factor) {}
  std::vector<CompressorState> State(const Shape&) const override { return {}; }

  Work Reduce(const std::shared_ptr<GradientBucket>& bucket) const override {
    for (const GradientPart& part : bucket->parts()) {
      const Tensor wide = bucket->NewTensor(DType::kF64, part.gradient.num_elements());
      bucket->Run([wide, gradient = part.gradient] {
        CopyTensor(gradient.Reshape({gradient.num_elements()}), wide);
      });
      bucket->Add(bucket->group().AllReduce(wide, wide, ReduceOp::kSum, bucket->options()));
      bucket->Run([wide, gradient = part.gradient, factor = factor_] {
        double* const values = wide.data<double>();
        for (int64_t i = 0; i < wide.num_elements(); ++i) values[i] *= factor;
        CopyTensor(wide, gradient.Reshape({gradient.num_elements()}));
      });
    }
    return bucket->works().empty() ? Work() : bucket->works().back();
  }

 private:
  const double factor_;
};
const RegisterCompressor kRegisterHook({
    .name = "users_sum",
    .arguments = {{.name = "factor", .standard = 1, .most = 10}},
    .make = [](const CommunicationMethod& method) -> std::unique_ptr<Compressor> {
      return std::make_unique<SumInF64>(method.Get("factor"));
    },
});

Plan PlanOf(const DeviceMesh& mesh, const std::string& method, const SchedulerChoices& scheduler = {}) {
  Plan plan = GptPlan(mesh, DataPlan::kDdp, /*sequence_parallel=*/mesh.FindAxis("tp") >= 0);
  plan.set_scheduler(scheduler);
  return plan.Merge(Plan{{"", Communication(method)}});
}

// A training of the small GPT, saved and resumed.
struct Run {
  std::string mesh = "dp=2";
  std::string method = "none";
  int64_t first = 1, last = 6;
  std::string save = {}, resume = {};
  DType dtype = DType::kF64;
  SchedulerChoices scheduler = {};
  int64_t microbatches = 1;
  Plan more = {};  // entries behind the one that has the method
};

struct Outcome {
  std::vector<double> losses;
  FullTensors parameters;
  std::map<std::string, std::vector<double>> state;  // whole: all ranks' rows
  int64_t grad_bytes = 0;                            // of the last step, over dp
  bool operator==(const Outcome&) const = default;
};

Outcome Train(const Run& run) {
  Outcome outcome;
  const DeviceMesh mesh = DeviceMesh::Parse(run.mesh);
  RunRanks(mesh.num_ranks(), [&](World& world) {
    Gpt model(SmallGptConfig());
    const auto context = Parallelize(
        model, world, mesh, PlanOf(mesh, run.method, run.scheduler).Merge(run.more), {.dtype = run.dtype});
    Sgd optimizer(model.AllParameters(), {});
    Trainer trainer(model, optimizer, {.schedule = [](int64_t) { return 0.05; }, .grad_clip = 0});
    if (!run.resume.empty()) {
      SafetensorsReader reader(run.resume);
      LoadParameters(reader, model);
      LoadOptimizerState(reader, optimizer);
      LoadCommunicationState(reader, model);
      trainer.set_step(run.first - 1);
    }
    Layout rows(2, mesh.num_axes());
    if (mesh.FindAxis("dp") >= 0) rows = rows.WithShard(mesh.FindAxis("dp"), 0);
    Outcome mine;
    for (int64_t step = run.first; step <= run.last; ++step) {
      const auto loss = [&, step](int part) {
        std::vector<int32_t> tokens(kBatch * kSequence);
        for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>((i * i + 7 * step) % 257);
        const int64_t count = kBatch / run.microbatches;
        const absl::Span<const int32_t> own =
            absl::MakeConstSpan(tokens).subspan(part * count * kSequence, count * kSequence);
        const BatchOffsetGuard offset(context->state(), part * count);
        const DTensor batch =
            DTensor::Distribute(context, Tensor::FromValues<int32_t>({count, kSequence}, own), rows);
        return model.Loss(batch, batch);
      };
      const auto rows_of = [&](int) { return kBatch / run.microbatches; };
      if (run.microbatches == 1) {
        trainer.Step(kBatch * kSequence, [loss] { return loss(0).Mean(); });
      } else {
        trainer.Step(static_cast<int>(run.microbatches), rows_of, [loss](int i) { return loss(i).Mean(); });
      }
      mine.losses.push_back(trainer.Flush()->loss);
    }
    for (const CommRow& row : CollectCommReport(*context).rows) {
      if (row.purpose == "grad" && row.axes == "dp") mine.grad_bytes += row.num_bytes;
    }
    for (const Parameter* parameter : model.AllParameters()) {
      mine.parameters[parameter->path()] = parameter->at_rest().FullTensor().ToVector<double>();
    }
    for (const auto& [name, tensor] : CommunicationState(model)) {
      mine.state[name] = tensor.FullTensor().ToVector<double>();
    }
    if (!run.save.empty()) {
      auto tensors = CheckpointTensors(model, optimizer);
      for (const auto& tensor : CommunicationState(model)) tensors.push_back(tensor);
      SaveTensors(run.save, tensors, {});
    }
    if (world.rank() == 0) outcome = mine;
  });
  return outcome;
}

// Bytes of all gradients over dp, by hand. What tp has to sum (norms, where the sequence is split) is summed before.
TEST(CommunicationTest, BytesAreThoseOfTheClosedForm) {
  for (const std::string mesh_text : {"dp=2", "dp=3", "dp=2,tp=2"}) {
    const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
    const int64_t n = mesh.axis_size(0), tp = mesh.num_ranks() / n;
    Gpt model(SmallGptConfig());
    const ResolvedPlan resolved = ResolvePlan(model, mesh, PlanOf(mesh, "none"));
    int64_t entries = 0, elements = 0;
    const std::vector<Parameter*> parameters = model.RegisteredParameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      for (int64_t index = 0; index < tp; ++index) {
        const std::vector<int64_t> coordinate = mesh.CoordinateOf(static_cast<int>(index));
        const int64_t size =
            LocalBox(parameters[i]->spec().shape, resolved.parameters[i].layouts.at_rest, mesh, coordinate)
                .shape.num_elements();
        entries += std::max<int64_t>(1, size / 100);
        elements += size;
      }
    }
    EXPECT_EQ(Train({.mesh = mesh_text, .method = "topk(0.01)", .last = 2}).grad_bytes,
              n * (n - 1) * entries * 8)
        << mesh_text;
    EXPECT_EQ(Train({.mesh = mesh_text, .method = "bf16", .last = 2}).grad_bytes, 2 * (n - 1) * elements * 2)
        << mesh_text;
  }
}

// Bytes over n ranks of a gradient of so many elements of f64.
int64_t BytesBy(const std::string& method, int64_t n, int64_t size) {
  if (method == "none") return 2 * (n - 1) * size * 8;
  if (method == "topk(0.1)") return n * (n - 1) * std::max<int64_t>(1, size / 10) * 8;
  int64_t blocks = 0;
  const int64_t chunk = (size + n - 1) / n;
  for (int64_t begin = 0; begin < size; begin += chunk) {
    blocks += (std::min(chunk, size - begin) + 255) / 256;
  }
  return 2 * (n - 1) * (size + 4 * blocks);  // int8
}

// Two methods, and modules that are exempt from both, in one plan.
TEST(CommunicationTest, EachEntryHasItsMethod) {
  const Plan more = {{"blocks.*", Communication("int8")}, {"blocks.*.ln_1", Communication("none")}};
  const auto method_of = [](const std::string& path) {
    if (!absl::StartsWith(path, "blocks.")) return "topk(0.1)";
    return absl::StrContains(path, ".ln_1.") ? "none" : "int8";
  };
  for (const int n : {2, 3}) {
    const std::string mesh = absl::StrCat("dp=", n);
    const Outcome exact = Train({.mesh = mesh, .last = 1});
    const Outcome mixed = Train({.mesh = mesh, .method = "topk(0.1)", .last = 1, .more = more});
    int64_t bytes = 0;
    std::map<std::string, int> parameters;
    for (const auto& [path, values] : mixed.parameters) {
      const std::string method = method_of(path);
      ++parameters[method];
      bytes += BytesBy(method, n, std::ssize(values));
      // Forward had equal parameters: what an update has made of them says what the gradient was.
      EXPECT_EQ(values == exact.parameters.at(path), method == "none") << path << " by " << method;
      EXPECT_EQ(mixed.state.count(absl::StrCat("communication.", path, ".residual")),
                method == "none" ? 0u : 1u)
          << path << " by " << method;
    }
    EXPECT_EQ(parameters.size(), 3u);
    EXPECT_EQ(mixed.grad_bytes, bytes) << mesh;
  }
}

TEST(CommunicationTest, ValuesDependOnNoSchedule) {
  for (const std::string method : {"int8", "topk(0.1)", "powersgd(2)"}) {
    for (const std::string mesh : {"dp=3", "dp=2,tp=2"}) {
      Outcome usual = Train({.mesh = mesh, .method = method});
      for (const SchedulerChoices& scheduler :
           {SchedulerChoices{.bucket_mb = 0.01}, SchedulerChoices{.overlap = false}, {.find_unused = true}}) {
        Outcome other = Train({.mesh = mesh, .method = method, .scheduler = scheduler});
        other.grad_bytes = usual.grad_bytes;  // with find_unused
        EXPECT_TRUE(other == usual) << method << " on " << mesh << ": " << scheduler.ToString();
      }
    }
  }
}

// Microbatches are summed first: the bytes of one reduction. Which rows a rank has differs, and so do its largest elements.
TEST(CommunicationTest, MicrobatchesAreReducedOnce) {
  const Outcome one = Train({.method = "topk(0.1)", .last = 2});
  const Outcome four = Train({.method = "topk(0.1)", .last = 2, .microbatches = 4});
  EXPECT_EQ(four.grad_bytes, one.grad_bytes);
  EXPECT_EQ(four.state.at("communication.round"), (std::vector<double>{2}));
  EXPECT_NEAR(four.losses[1], one.losses[1], 2e-3);
}

// Gradients of parameters that rest in bf16 are summed in f32, and so is what is kept of them.
TEST(CommunicationTest, NarrowGradientsAreSummedInF32) {
  const Outcome exact = Train({.last = 8});
  for (const std::string method : {"int8", "topk(1)", "powersgd(2)"}) {
    const Outcome narrow = Train({.method = method, .last = 8, .dtype = DType::kBF16});
    EXPECT_NEAR(narrow.losses.back(), exact.losses.back(), 0.03) << method;
    bool is_wide = false;
    for (const auto& [name, values] : narrow.state) {
      for (const double value : values)
        is_wide |= value != static_cast<float>(BFloat16(static_cast<float>(value)));
    }
    EXPECT_TRUE(is_wide || method == "topk(1)") << method;
  }
}

// How far training gets from one device's: of the way that the parameters have gone.
TEST(CommunicationTest, TrainsNearOneDevice) {
  const Outcome begin = Train({.mesh = "", .last = 0}), one = Train({.mesh = "", .last = 12});
  const double way = Distance(one.parameters, begin.parameters);
  for (const auto& [method, bound] :
       std::vector<std::pair<std::string, double>>{{"none", 1e-12},
                                                   {"users_sum", 1e-12},
                                                   {"topk(1)", 1e-6},
                                                   {"bf16", 0.01},
                                                   {"f16", 0.01},
                                                   {"int8", 0.1},
                                                   {"onebit", 0.9},
                                                   {"topk(0.1)", 0.8},
                                                   {"randomk(0.2)", 0.8},
                                                   {"powersgd(2)", 0.8},
                                                   {"powersgd(32, min_compression_rate=0.1)", 1e-3}}) {
    for (const std::string mesh : {"dp=2", "dp=4", "dp=2,tp=2"}) {
      const Outcome other = Train({.mesh = mesh, .method = method, .last = 12});
      EXPECT_LE(Distance(other.parameters, one.parameters), bound * way) << method << " on " << mesh;
      EXPECT_LT(other.losses.back(), other.losses.front()) << method << " on " << mesh;
    }
  }
  // The mutant: a hook that sums wrongly.
  const Outcome wrong = Train({.method = "users_sum(1.01)", .last = 12});
  EXPECT_GT(Distance(wrong.parameters, one.parameters), 1e-3 * way);
}

TEST(CommunicationTest, StateIsSavedAndResumed) {
  const std::string path = testing::TempDir() + "/communication.safetensors";
  for (const char* method : kMethods) {
    for (const std::string mesh : {"dp=2", "dp=2,tp=2"}) {
      const Outcome whole = Train({.mesh = mesh, .method = method, .dtype = DType::kF32});
      Train({.mesh = mesh, .method = method, .last = 4, .save = path, .dtype = DType::kF32});
      const Outcome rest =
          Train({.mesh = mesh, .method = method, .first = 5, .resume = path, .dtype = DType::kF32});
      EXPECT_EQ(rest.parameters, whole.parameters) << method << " on " << mesh;
      EXPECT_EQ(rest.state, whole.state) << method << " on " << mesh;
      EXPECT_EQ(rest.state.at("communication.round"), (std::vector<double>{6}));
    }
  }
  std::remove(path.c_str());
}

// A model that is spread anew begins without state.
TEST(CommunicationTest, SpreadAnewItBeginsAnew) {
  RunRanks(2, [](World& world) {
    const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
    Gpt model(SmallGptConfig());
    const auto context = Bind(world, mesh);
    for (const std::string method : {"int8", "none", "topk(0.1)"}) {
      Parallelize(model, context, PlanOf(mesh, method));
      Sgd optimizer(model.AllParameters(), {});
      Trainer trainer(model, optimizer, {.schedule = [](int64_t) { return 0.05; }});
      const Tensor ones = Tensor::FromValues<int32_t>({2, kSequence}, std::vector<int32_t>(2 * kSequence, 1));
      const DTensor tokens = DTensor::Distribute(context, ones, Layout(2, 1).WithShard(0, 0));
      const auto state = CommunicationState(model);
      EXPECT_EQ(state.empty(), method == "none");
      for (const auto& [name, tensor] : state) {
        for (const double value : tensor.ToLocal().ToVector<double>()) EXPECT_EQ(value, 0) << name;
      }
      for (int step = 0; step < 3; ++step) {
        trainer.Step(2 * kSequence, [&] { return model.Loss(tokens, tokens).Mean(); });
      }
      trainer.Flush();
      if (method != "none") {
        EXPECT_EQ(CommunicationState(model)[0].second.Item(), 3);
      }
    }
  });
}

// A residual's rows, added up.
std::vector<double> SumOfRows(const std::vector<double>& rows, size_t size) {
  std::vector<double> sum(size);
  for (size_t i = 0; i < rows.size(); ++i) sum[i % size] += rows[i];
  return sum;
}

TEST(CommunicationTest, OtherMeshesKeepTheSumOfTheResiduals) {
  const std::string path = testing::TempDir() + "/communication_mesh.safetensors";
  for (const std::string method : {"topk(0.1, momentum=0.5)", "int8", "powersgd(2)"}) {
    const Outcome saved = Train({.mesh = "dp=4", .method = method, .last = 4, .save = path});
    for (const std::string mesh : {"dp=4", "dp=2", "dp=3", "dp=5", "dp=2,tp=2"}) {
      const Outcome loaded = Train({.mesh = mesh, .method = method, .first = 5, .last = 4, .resume = path});
      EXPECT_EQ(loaded.parameters, saved.parameters) << mesh;
      int num_compared = 0;
      for (const auto& [parameter, values] : saved.parameters) {
        for (const std::string kept : {"residual", "velocity"}) {
          const std::string name = absl::StrCat("communication.", parameter, ".", kept);
          if (saved.state.count(name) == 0 || loaded.state.count(name) == 0) continue;
          const std::vector<double> before = SumOfRows(saved.state.at(name), values.size());
          const std::vector<double> after = SumOfRows(loaded.state.at(name), values.size());
          for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(after[i], before[i], 1e-15) << name;
          ++num_compared;
        }
      }
      EXPECT_GT(num_compared, 4) << method << " on " << mesh;
      EXPECT_EQ(loaded.state.at("communication.round"), (std::vector<double>{4}));
      const Outcome on = Train({.mesh = mesh, .method = method, .first = 5, .last = 8, .resume = path});
      EXPECT_LT(on.losses.back(), saved.losses.front()) << method << " on " << mesh;
    }
    // A single rank has nothing to sum, and a run that compressed nothing no state.
    EXPECT_TRUE(Train({.mesh = "", .method = method, .first = 5, .resume = path}).state.empty());
    Train({.last = 4, .save = path});
    const Outcome begun = Train({.mesh = "dp=2", .method = method, .first = 5, .resume = path});
    EXPECT_EQ(begun.state.at("communication.round"), (std::vector<double>{2}));
  }
  std::remove(path.c_str());
}

}  // namespace
}  // namespace weft

// A model whose parameters alone are three times the memory that the process may have, trained, saved and resumed: what is
// offloaded is no data of the process. In processes of their own: the limit is a process's. Sanitizers have data of their own: not under them.

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/checkpoint/checkpoint.h"
#include "dtensor/checkpoint/safetensors.h"
#include "dtensor/functions.h"
#include "dtensor/nn/linear.h"
#include "dtensor/optim/adamw.h"
#include "gmock/gmock.h"
#include "parallel/parallelize.h"
#include "parallel/styles.h"
#include "runtime/launch/run_ranks.h"
#include "tests/small_stacks.h"

namespace weft {
namespace {

constexpr int64_t kCap = int64_t{48} << 20;  // of the ranks together, beyond what the process has before
constexpr int64_t kWidth = 512, kLayers = 144;
static_assert(kLayers * kWidth * kWidth * static_cast<int64_t>(sizeof(float)) >= 3 * kCap);

int64_t DataBytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    int64_t kibibytes = 0;
    if (word == "VmData:" && status >> kibibytes) return kibibytes << 10;
  }
  return 0;
}

class Net : public Module {
 public:
  Net() {
    for (int64_t i = 0; i < kLayers; ++i) {
      layers_.push_back(std::make_unique<Linear>(this, absl::StrCat("l", i), kWidth, kWidth));
    }
  }

 private:
  DTensor Forward(const DTensor& x) override {
    DTensor y = x;
    for (const auto& layer : layers_) y = y + Tanh((*layer)(y));
    return y;
  }

  std::vector<std::unique_ptr<Linear>> layers_;
};

struct Job {
  int ranks = 1;
  Plan plan = {};
  int from = 0, to = 0;   // steps: where `from` is not 0, on from what `path` has
  std::string path = {};  // of a checkpoint, written at the end
  int64_t cap_bytes = 0;  // of each rank's device allocator
};

DTensor Batch(const IntrusivePtr<MeshContext>& context, int step) {
  std::vector<float> rows(4 * kWidth);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = static_cast<float>((i * 31 + static_cast<size_t>(step) * 7) % 17) / 17;
  }
  return DTensor::Distribute(context, Tensor::FromValues<float>({4, kWidth}, rows),
                             Layout(2, 1).WithShard(/*axis=*/0, /*dim=*/0));
}

std::vector<double> Train(World& world, const Job& job) {
  Net model;
  const auto context = Parallelize(model, world, DeviceMesh::Parse(absl::StrCat("dp=", job.ranks)), job.plan);
  AdamW optimizer(model.AllParameters(), AdamWOptions());
  if (job.from > 0) {
    SafetensorsReader reader(job.path);
    LoadParameters(reader, model);
    LoadOptimizerState(reader, optimizer);
  }
  std::vector<double> losses;
  for (int step = job.from; step < job.to; ++step) {
    context->state().set_step(step);
    const DTensor y = model(Batch(context, step));
    const DTensor loss = Mean(Mul(y, y));
    losses.push_back(loss.Item());
    Backward(loss);
    optimizer.Step(1e-3);
    optimizer.ZeroGrad();
  }
  SaveTensors(job.path, CheckpointTensors(model, optimizer), {});
  return losses;
}

std::vector<double> RunHere(const Job& job) {
  std::vector<double> losses;
  RunRanks(job.ranks,
           [&](World& world) {
             const std::vector<double> mine = Train(world, job);
             if (world.rank() == 0) losses = mine;
           },
           {.device_options = {.cap_bytes = job.cap_bytes, .offload_folder = testing::TempDir()},
            .threads_per_rank = 1});
  return losses;
}

constexpr int kOutOfMemory = 4;

struct Outcome {
  std::vector<double> losses;
  int exit_code = -1;  // kOutOfMemory: an error said so
};

// Runs the job in a process of its own, so that this one stays small; with `is_capped` in one that may have kCap bytes of
// data beyond what it starts with.
Outcome RunApart(const Job& job, bool is_capped) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    if (!UseSmallStacks()) _exit(6);
    const auto most = static_cast<rlim_t>(DataBytes() + kCap);
    const rlimit limit = {most, most};
    if (is_capped && setrlimit(RLIMIT_DATA, &limit) != 0) _exit(2);
    try {
      const std::vector<double> losses = RunHere(job);
      const size_t bytes = losses.size() * sizeof(double);
      if (write(ends[1], losses.data(), bytes) != static_cast<ssize_t>(bytes)) _exit(3);
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      _exit(error.code() == absl::StatusCode::kResourceExhausted ? kOutOfMemory : 5);
    } catch (const std::bad_alloc&) {
      _exit(kOutOfMemory);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      _exit(5);
    }
    _exit(0);
  }
  close(ends[1]);
  Outcome outcome;
  double loss = 0;
  while (read(ends[0], &loss, sizeof(loss)) == sizeof(loss)) outcome.losses.push_back(loss);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

Outcome RunCapped(const Job& job) { return RunApart(job, /*is_capped=*/true); }
std::vector<double> RunFree(const Job& job) { return RunApart(job, /*is_capped=*/false).losses; }

std::string Path(const std::string& name) { return absl::StrCat(testing::TempDir(), "/", name); }

TEST(OffloadLimitTest, AModelOfThreeTimesTheCapIsTrainedAndResumed) {
  const Plan offload = {{"", Offload({.parameters = true})}};
  const std::vector<double> expected = RunFree({.to = 4, .path = Path("free.safetensors")});
  ASSERT_EQ(expected.size(), 4u);
  EXPECT_NE(expected[3], expected[0]);
  // The device's allocator says the same as the kernel.
  Job job = {.plan = offload, .to = 2, .path = Path("capped.safetensors"), .cap_bytes = kCap / 2};
  const std::vector<double> first = RunCapped(job).losses;
  job.from = 2;
  job.to = 4;
  const std::vector<double> rest = RunCapped(job).losses;
  EXPECT_EQ(first, std::vector<double>(expected.begin(), expected.begin() + 2));
  EXPECT_EQ(rest, std::vector<double>(expected.begin() + 2, expected.end()));
}

TEST(OffloadLimitTest, ShardedOverRanksToo) {
  const Plan fsdp = {{"*", FullyShard("dp")}, {"", FullyShard("dp")}};
  const std::vector<double> expected =
      RunFree({.ranks = 2, .plan = fsdp, .to = 2, .path = Path("free2.safetensors")});
  const Job job = {.ranks = 2,
                   .plan = fsdp.Merge(Plan({{"", Offload({.parameters = true})}})),
                   .to = 2,
                   .path = Path("capped2.safetensors"),
                   .cap_bytes = kCap / 4};
  ASSERT_EQ(expected.size(), 2u);
  EXPECT_NE(expected[1], expected[0]);
  EXPECT_EQ(RunCapped(job).losses, expected);
}

TEST(OffloadLimitTest, WithoutItThereIsNotEnough) {
  EXPECT_EQ(RunCapped({.to = 1, .path = Path("none.safetensors")}).exit_code, kOutOfMemory);
}

}  // namespace
}  // namespace weft

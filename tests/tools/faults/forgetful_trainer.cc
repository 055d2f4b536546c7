// A training that chaos may hurt: it takes train_gpt's flags for steps and checkpoints, and tells its steps in JSON. With
// --forget it does not restore a part of its state, which must be found out.

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "dtensor/checkpoint/checkpoint.h"
#include "dtensor/checkpoint/files/files.h"
#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "dtensor/checkpoint/state/state.h"
#include "runtime/base/flags.h"
#include "runtime/launch/run_world.h"
#include "tests/dtensor/checkpoint/files/forwarding_files.h"
#include "weft.h"

ABSL_FLAG(int64_t, steps, 10, "to make");
ABSL_FLAG(std::string, checkpoint_dir, "", "folder of checkpoints");
ABSL_FLAG(int64_t, save_every, 1, "steps");
ABSL_FLAG(std::string, save, "", "file for the state at the end");
ABSL_FLAG(std::string, log_format, "json", "json");
ABSL_FLAG(
    std::string, forget, "nothing",
    "nothing; updates: the optimizer's count of them; position: the place in the data; rest: what is left "
    "when a write has written a part");

namespace weft {
namespace {

class Net : public Module {
 public:
  Net() : up(this, "up", 8, 32), down(this, "down", 32, 1) {}
  Linear up, down;

 protected:
  DTensor Forward(const DTensor& x) override { return down(Tanh(up(x))); }
};

// The disk's files, whose writers say that each write has written everything.
class HastyFiles final : public ForwardingFiles {
 public:
  std::unique_ptr<FileWriter> Create(const std::string& path) override {
    return std::make_unique<Writer>(files().Create(path));
  }

 private:
  class Writer final : public FileWriter {
   public:
    explicit Writer(std::unique_ptr<FileWriter> file) : file_(std::move(file)) {}
    int64_t Write(const void* data, int64_t num_bytes) override {
      file_->Write(data, num_bytes);
      return num_bytes;
    }
    void Sync() override { file_->Sync(); }
    void Close() override { file_->Close(); }

   private:
    const std::unique_ptr<FileWriter> file_;
  };
};

// What is saved: parameters, the optimizer's state, the place in the data.
State StateOfRun(Net& net, AdamW& optimizer, int64_t* position) {
  const std::string forget = absl::GetFlag(FLAGS_forget);
  State state;
  state.Add("model", MakeModelState(net));
  const auto moments = [&optimizer, forget] {
    std::vector<std::pair<std::string, DTensor>> tensors = optimizer.State();
    if (forget == "updates")
      std::erase_if(tensors, [](const auto& entry) { return entry.first == "updates"; });
    return tensors;
  };
  state.Add("optimizer", MakeTensorState(moments));
  const auto load = [position, forget](const std::string& text) {
    if (forget != "position") WEFT_CHECK(absl::SimpleAtoi(text, position), text);
  };
  state.Add("data", MakeTextState(
                        "position", [position] { return absl::StrCat(*position); }, load));
  return state;
}

void Train(World& world) {
  const DeviceMesh mesh({{"dp", world.size()}});
  Net net;
  const auto context = Parallelize(net, world, mesh, {{"", FullyShard("dp")}}, {.dtype = DType::kF64});
  AdamW optimizer(net.AllParameters(), {});
  int64_t position = 0;
  State state = StateOfRun(net, optimizer, &position);
  CheckpointOptions options = {.folder = absl::GetFlag(FLAGS_checkpoint_dir),
                               .save_every = absl::GetFlag(FLAGS_save_every)};
  if (absl::GetFlag(FLAGS_forget) == "rest") options.files = std::make_shared<HastyFiles>();
  options.on_saved = [&world](int64_t) { NoteSave(world); };
  CheckpointManager checkpoints(world, options);
  for (int64_t step = checkpoints.Resume(state).value_or(0) + 1; step <= absl::GetFlag(FLAGS_steps); ++step) {
    context->state().set_step(++position);
    const DTensor x = RandomNormal(context, DType::kF64, {33, 8}, Layout(2, 1), "x");
    const DTensor loss = Mean(Square(net(x) - Sum(Square(x), {1}, /*keep_dims=*/true)));
    Backward(loss);
    optimizer.Step(/*lr=*/0.01);
    optimizer.ZeroGrad();
    const double value = loss.Item();
    if (world.rank() == 0) {
      std::printf("{\"step\":%lld,\"loss\":%.17g}\n", static_cast<long long>(step), value);
      std::fflush(stdout);
    }
    checkpoints.AfterStep(step, state);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // long enough for faults to come in it
  }
  checkpoints.Wait();
  SaveTensors(absl::GetFlag(FLAGS_save), CheckpointTensors(net, optimizer), {});
}

int Run() {
  RunWorld(NumLaunchedRanks(Backend::kAuto).value_or(1), Train);
  return 0;
}

FlagsUsage Usage() {
  return {.summary = "Trains a small network, to be hurt.",
          .groups = {{"Run", {"steps", "checkpoint_dir", "save_every", "save", "log_format", "forget"}}},
          .examples = {}};
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Run); }

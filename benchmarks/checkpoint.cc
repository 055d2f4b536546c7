// What a checkpoint costs: the stall and the slowing down of training beside it, and the rates of saving and loading.
//
//   bazel run //benchmarks:checkpoint                       GPT-2 124M with AdamW on two ranks: 1.5 GB of state
//   bazel run //benchmarks:checkpoint -- --model=small --folder=/scratch
//
// Ranks are threads, fully sharded. Lines:
//
//   checkpoint/stall   milliseconds that a save in the background keeps the slowest rank; the limit is memcpy of the same bytes by
//                      the same threads, by 1 MiB into one buffer that has been touched, in turn; of the slowest rank, too
//   checkpoint/first_stall   the same of the first save, which allocates
//   checkpoint/step    a step's milliseconds while a save is open, beside the mean of those without
//   checkpoint/writer  CPU seconds of the writing threads of all ranks, per save
//   checkpoint/save    MB/s of a save that waits; the limit is what dd does with bs=8M conv=fsync: the same bytes in one file,
//                      by write and fsync
//   checkpoint/load    MB/s of loading after the files have been dropped from memory (POSIX_FADV_DONTNEED); the limit
//                      is what dd does: the same files, read by 8 MiB after the same

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/figure.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/checkpoint/folder/step_folder.h"
#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "dtensor/functions.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/optim/adamw.h"
#include "parallel/parallelize.h"
#include "parallel/styles.h"
#include "runtime/base/error.h"
#include "runtime/base/flags.h"
#include "runtime/base/thread_pool.h"
#include "runtime/launch/run_ranks.h"

ABSL_FLAG(std::string, model, "gpt2-124M", "gpt2-124M, or small: 6 layers of 384");
ABSL_FLAG(int64_t, batch, 2, "sequences of a step, over both ranks");
ABSL_FLAG(int64_t, context, 64, "tokens of a sequence");
ABSL_FLAG(int64_t, saves, 5, "saves to measure");
ABSL_FLAG(int64_t, calm_steps, 6, "steps without a save to measure, before each");
ABSL_FLAG(std::string, folder, "", "where files are written; empty: TMPDIR, or /tmp");

namespace weft {
namespace {

constexpr int64_t kPart = 8 << 20;

FlagsUsage Usage() {
  return {.summary = "Measures what checkpoints cost beside memcpy, dd and steps without them.",
          .groups = {{"Training", {"model", "batch", "context"}},
                     {"Measurement", {"saves", "calm_steps", "folder", "log_format"}}},
          .examples = {"checkpoint --model=small"}};
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
double Mean(const std::vector<double>& values) {
  return values.empty()
             ? 0
             : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

GptConfig Config() {
  const std::string model = absl::GetFlag(FLAGS_model);
  WEFT_REQUIRE(model == "gpt2-124M" || model == "small", "--model=", model, ": expected gpt2-124M or small");
  GptConfig config = model == "small" ? GptConfig{.vocabulary = 256, .layers = 6, .heads = 6, .dim = 384}
                                      : GptConfig::Gpt2_124M();
  config.context = absl::GetFlag(FLAGS_context);
  return config;
}

class Training {
 public:
  explicit Training(World& world)
      : model_(Config()),
        context_(Parallelize(model_, world, DeviceMesh({{"dp", world.size()}}),
                             {{"blocks.*", FullyShard("dp")}, {"", FullyShard("dp")}})),
        optimizer_(model_.AllParameters(), AdamWOptions()) {
    const Shape shape = {absl::GetFlag(FLAGS_batch), absl::GetFlag(FLAGS_context)};
    const Tensor ones = Tensor::FromValues<int32_t>(shape, std::vector<int32_t>(shape.num_elements(), 1));
    tokens_ = DTensor::Distribute(context_, ones, Layout(shape.ndim(), 1).WithShard(0, 0));
    state_.Add("model", MakeModelState(model_));
    state_.Add("optimizer", MakeOptimizerState(optimizer_));
  }

  void Step() {
    Backward(model_.Loss(tokens_, tokens_).Mean());
    optimizer_.Step(1e-4);
    optimizer_.ZeroGrad();
  }
  State& state() { return state_; }

  // This rank's pieces.
  std::vector<std::pair<std::string, Tensor>> Pieces() {
    std::vector<std::pair<std::string, Tensor>> pieces;
    for (const auto& [name, part] : state_.parts()) {
      for (StateTensor& tensor : part->Tensors()) pieces.push_back({tensor.name, tensor.tensor.ToLocal()});
    }
    return pieces;
  }

 private:
  Gpt model_;
  IntrusivePtr<MeshContext> context_;
  AdamW optimizer_;
  DTensor tokens_;
  State state_;
};

struct Measured {
  double first_stall = 0;
  std::vector<double> stalls, copies, open_steps, calm_steps, cpu;
  int64_t num_bytes = 0;  // of this rank
};

// Seconds of a plain copy of the pieces into one buffer, which it makes and touches where it is too small.
double CopySeconds(const std::vector<std::pair<std::string, Tensor>>& pieces, ThreadPool& pool,
                   std::vector<char>* buffer) {
  constexpr int64_t kCopied = 1 << 20;  // at once, by a thread
  struct Part {
    const char* from;
    int64_t to, num_bytes;
  };
  std::vector<Part> parts;
  int64_t total = 0;
  for (const auto& [name, piece] : pieces) {
    WEFT_CHECK(piece.IsContiguous(), name);
    for (int64_t done = 0; done < piece.num_bytes(); done += kCopied) {
      const int64_t num_bytes = std::min(kCopied, piece.num_bytes() - done);
      parts.push_back({static_cast<const char*>(piece.data()) + done, total, num_bytes});
      total += num_bytes;
    }
  }
  if (std::ssize(*buffer) < total) buffer->assign(static_cast<size_t>(total), 'x');
  const double begun = Now();
  pool.Run(std::ssize(parts), [&](int64_t i) {
    std::memcpy(buffer->data() + parts[i].to, parts[i].from, static_cast<size_t>(parts[i].num_bytes));
  });
  return Now() - begun;
}

// Saves in the background, with steps before and meanwhile.
Measured MeasureBackground(World& world, Training& training, const std::string& folder) {
  CheckpointManager manager(world, {.folder = folder, .keep = 1, .background = true});
  Agreement agreement(world, std::chrono::minutes(10));
  const auto together = [&](bool mine) {
    for (const std::string& text : agreement.AllGather(mine ? "1" : "0")) mine = mine || text == "1";
    return mine;
  };
  Measured measured;
  std::vector<char> copy;
  int64_t step = 0;
  for (int64_t save = 0; save <= absl::GetFlag(FLAGS_saves); ++save) {
    for (int64_t i = 0; i < absl::GetFlag(FLAGS_calm_steps); ++i) {
      const double begun = Now();
      training.Step(), ++step;
      if (save > 0 && i > 0) measured.calm_steps.push_back(Now() - begun);
    }
    together(false);
    const double copied = CopySeconds(training.Pieces(), world.pool(), &copy);
    if (save > 0) measured.copies.push_back(copied);
    together(false);
    manager.Save(step, training.state());
    while (together(manager.is_saving() && !manager.is_over())) {
      const double begun = Now();
      training.Step(), ++step;
      if (save > 0) measured.open_steps.push_back(Now() - begun);
    }
    manager.Wait();
    if (save == 0) measured.first_stall = manager.last_save().stall;
    if (save == 0) continue;
    measured.stalls.push_back(manager.last_save().stall);
    measured.cpu.push_back(manager.last_save().cpu);
    measured.num_bytes = manager.last_save().num_bytes;
  }
  return measured;
}

void DropFromMemory(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  WEFT_REQUIRE(file >= 0, "cannot open '", path, "'");
  fsync(file);
  posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  close(file);
}

// Seconds of `dd bs=8M conv=fsync` of so many bytes.
double WriteSeconds(const std::string& path, int64_t num_bytes) {
  const std::vector<char> part(kPart, 'x');
  const std::shared_ptr<Files> files = MakeDiskFiles();
  const double begun = Now();
  const auto file = files->Create(path);
  for (int64_t done = 0; done < num_bytes; done += kPart)
    WriteAll(*file, part.data(), std::min(kPart, num_bytes - done));
  file->Sync();
  file->Close();
  const double seconds = Now() - begun;
  std::filesystem::remove(path);
  return seconds;
}

double ReadSeconds(const std::vector<std::string>& paths) {
  std::vector<char> part(kPart);
  const std::shared_ptr<Files> files = MakeDiskFiles();
  const double begun = Now();
  for (const std::string& path : paths) {
    const auto file = files->Open(path);
    for (int64_t at = 0; at < file->num_bytes();) at += file->ReadAt(at, part.data(), kPart);
  }
  return Now() - begun;
}

struct Rates {
  std::vector<double> save, write, load, read;  // seconds
};

void MeasureRates(World& world, Training& training, const std::string& folder, int64_t all_bytes,
                  Rates* rates) {
  CheckpointManager manager(world, {.folder = folder, .keep = 1});
  Agreement agreement(world, std::chrono::minutes(10));
  const bool is_first = world.rank() == 0;
  const auto on_first = [&](const std::function<void()>& function) {
    agreement.Agree({.part = [&] { return is_first ? (function(), "") : ""; }});
  };
  for (int64_t i = 1; i <= absl::GetFlag(FLAGS_saves); ++i) {
    on_first([&] { rates->write.push_back(WriteSeconds(folder + "/dd", all_bytes)); });
    const int64_t step = 1'000'000 + i;
    manager.Save(step, training.state());
    if (is_first) rates->save.push_back(manager.last_save().stall);
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(folder + "/" + StepName(step))) {
      paths.push_back(entry.path().string());
    }
    const auto drop = [&] {
      for (const std::string& path : paths) DropFromMemory(path);
    };
    on_first([&] {
      drop();
      rates->read.push_back(ReadSeconds(paths));
      drop();
    });
    const double begun = Now();
    manager.Load(step, training.state());
    if (is_first) rates->load.push_back(Now() - begun);
  }
}

// Of each save, the largest of all ranks: those that are done first wait for it at the next collective.
std::vector<double> Slowest(const std::vector<Measured>& ranks, std::vector<double> Measured::*what) {
  std::vector<double> slowest = ranks[0].*what;
  for (const Measured& rank : ranks) {
    for (size_t i = 0; i < slowest.size(); ++i) slowest[i] = std::max(slowest[i], (rank.*what)[i]);
  }
  return slowest;
}

void ReportAll(const std::vector<Measured>& ranks, const Rates& rates, int64_t all_bytes) {
  const Measured& first = ranks[0];
  double cpu = 0;
  for (const Measured& rank : ranks) cpu += Mean(rank.cpu);
  Report({.name = "checkpoint/stall",
          .value = Median(Slowest(ranks, &Measured::stalls)) * 1e3,
          .unit = "ms",
          .limit = Median(Slowest(ranks, &Measured::copies)) * 1e3,
          .limit_is = absl::StrCat("memcpy of the same ", first.num_bytes >> 20, " MiB"),
          .target = 1.2,
          .less_is_better = true});
  double first_stall = 0;
  for (const Measured& rank : ranks) first_stall = std::max(first_stall, rank.first_stall);
  Report({.name = "checkpoint/first_stall", .value = first_stall * 1e3, .unit = "ms"});
  Report({.name = "checkpoint/step",
          .value = Mean(first.open_steps) * 1e3,
          .unit = "ms",
          .limit = Mean(first.calm_steps) * 1e3,
          .limit_is = absl::StrCat("steps without a save; ", first.open_steps.size(), " beside ",
                                   first.calm_steps.size()),
          .target = 1.15,
          .less_is_better = true});
  Report({.name = "checkpoint/writer", .value = cpu, .unit = "s"});
  const double megabytes = static_cast<double>(all_bytes) * 1e-6;
  Report({.name = "checkpoint/save",
          .value = megabytes / Median(rates.save),
          .unit = "MB/s",
          .limit = megabytes / Median(rates.write),
          .limit_is = "dd with fsync",
          .target = 0.8});
  Report({.name = "checkpoint/load",
          .value = megabytes / Median(rates.load),
          .unit = "MB/s",
          .limit = megabytes / Median(rates.read),
          .limit_is = "dd of the same files",
          .target = 0.8});
}

int Run() {
  std::string parent = UserPath(absl::GetFlag(FLAGS_folder));
  if (parent.empty()) parent = std::filesystem::temp_directory_path().string();
  const std::string folder = absl::StrCat(parent, "/weft_checkpoint.", getpid());
  std::vector<Measured> ranks(2);
  Rates rates;
  int64_t all_bytes = 0;
  try {
    RunRanks(2, [&](World& world) {
      Training training(world);
      ranks[world.rank()] = MeasureBackground(world, training, folder + "/background");
      Agreement agreement(world, std::chrono::minutes(10));
      for (const std::string& text : agreement.AllGather(absl::StrCat(ranks[world.rank()].num_bytes))) {
        if (world.rank() == 0) all_bytes += std::stoll(text);
      }
      agreement.AllGather("");
      MeasureRates(world, training, folder + "/rates", all_bytes, &rates);
    });
  } catch (...) {
    std::filesystem::remove_all(folder);
    throw;
  }
  std::filesystem::remove_all(folder);
  ReportAll(ranks, rates, all_bytes);
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Run); }

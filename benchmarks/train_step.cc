// Training speed of a GPT on the CPU: forward, backward, clipping and AdamW on random tokens.
//
//   bazel run //benchmarks:train_step                     GPT-2 124M, batch 4 x 64, one rank, two threads
//   bazel run //benchmarks:train_step -- --set=all --peer="$(benchmarks/peers/pytorch_train.py --set=all)"
//   bazel run //benchmarks:train_step -- --model=small --batch=16 --context=256 --parallel=ddp
//   bazel run //benchmarks:train_step -- --profile        where a step's time goes, op by op
//
// Medians over the steps after a warm-up. Held against: the peak of the cores in use, for the flops of the
// model's products (2 a multiply-add, three products a weight, attention's where the mask lets it see); the
// model's own bound, which is its products measured alone, attention's at the same rate, and AdamW's 28 bytes
// a parameter over triad; and the peers that --peer names.

#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "benchmarks/figure.h"
#include "benchmarks/machine_limits.h"
#include "benchmarks/resident_memory.h"
#include "benchmarks/step_products.h"
#include "benchmarks/step_profile.h"
#include "benchmarks/train_row.h"
#include "weft.h"

ABSL_FLAG(std::string, model, "gpt2-124M",
          "gpt2-124M, or small: 6 layers, 6 heads, 384 wide, vocabulary 256");
ABSL_FLAG(int64_t, vocabulary, 0, "tokens are below this; 0: the model's own");
ABSL_FLAG(std::string, parallel, "none", "none: one rank; ddp, fsdp or tp: over --ranks");
ABSL_FLAG(int, ranks, 2, "ranks of --parallel");
ABSL_FLAG(std::string, dtype, "f32", "of forward and backward: f32 or bf16");
ABSL_FLAG(int64_t, batch, 4, "sequences, global");
ABSL_FLAG(int64_t, context, 64, "tokens a sequence");
ABSL_FLAG(int, threads, 2, "threads, divided among the ranks: one per rank at least");
ABSL_FLAG(std::string, set, "",
          "all: every row of the table in docs/performance.md, whatever the flags above say");
ABSL_FLAG(std::string, only, "", "of --set, the rows with this in their name, as in small/16x256/f32");
ABSL_FLAG(int, steps, 5, "steps to measure");
ABSL_FLAG(int, warmup, 2, "steps before that");
ABSL_FLAG(bool, bound, true, "measure the model's products alone too (rows of one rank)");
ABSL_FLAG(bool, profile, false, "print where the steps' time went, by op");
ABSL_FLAG(
    std::string, peer, "",
    "what others make of it: NAME=TOKENS_A_SECOND, or NAME@ROW=TOKENS_A_SECOND and NAME@ROW/rss=MIB for "
    "one row, separated by commas");

namespace weft {
namespace {

FlagsUsage Usage() {
  return {.summary = "Measures training steps of a GPT on the CPU.",
          .groups = {{"Model", {"model", "vocabulary", "batch", "context", "dtype"}},
                     {"Parallelism", {"parallel", "ranks", "threads"}},
                     {"Rows", {"set", "only"}},
                     {"Measurement", {"steps", "warmup", "bound", "profile", "peer", "log_format"}}},
          .examples = {"train_step --peer=llm.c=54.0", "train_step --set=all --only=small",
                       "train_step --model=small --batch=16 --context=256 --parallel=ddp"}};
}

std::vector<TrainRow> RowsFromFlags() {
  const std::string set = absl::GetFlag(FLAGS_set);
  const std::string only = absl::GetFlag(FLAGS_only);
  WEFT_REQUIRE(set.empty() || set == "all", "--set=", set, ": expected all");
  WEFT_REQUIRE(!set.empty() || only.empty(), "--only=", only, ": expected --set=all, too");
  if (set.empty()) {
    return {{.model = absl::GetFlag(FLAGS_model),
             .batch = absl::GetFlag(FLAGS_batch),
             .context = absl::GetFlag(FLAGS_context),
             .dtype = absl::GetFlag(FLAGS_dtype),
             .parallel = absl::GetFlag(FLAGS_parallel),
             .ranks = absl::GetFlag(FLAGS_ranks),
             .threads = absl::GetFlag(FLAGS_threads),
             .vocabulary = absl::GetFlag(FLAGS_vocabulary)}};
  }
  std::vector<TrainRow> rows;
  for (const TrainRow& row : AllTrainRows()) {
    if (absl::StrContains(row.Name(), only)) rows.push_back(row);
  }
  WEFT_REQUIRE(!rows.empty(), "--only=", only, " leaves no row of the set");
  return rows;
}

// A figure of a peer: "PyTorch", of every row or of one, "rss" or a rate.
struct PeerFigure {
  std::string peer = {};
  std::string row = {};  // empty: whatever is measured
  bool is_memory = false;
  double value = 0;
};

// Errors: InvalidArgument for a --peer that does not read so.
std::vector<PeerFigure> PeersFromFlags() {
  std::vector<PeerFigure> figures;
  for (absl::string_view entry : absl::StrSplit(absl::GetFlag(FLAGS_peer), ',', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(entry, '=');
    const std::pair<absl::string_view, absl::string_view> who =
        absl::StrSplit(parts.first, absl::MaxSplits('@', 1));
    PeerFigure figure = {.peer = std::string(who.first)};
    absl::string_view row = who.second;
    figure.is_memory = absl::ConsumeSuffix(&row, "/rss");
    figure.row = std::string(row);
    WEFT_REQUIRE(absl::SimpleAtod(parts.second, &figure.value) && figure.value > 0,
                 "--peer: expected NAME=NUMBER or NAME@ROW=NUMBER, got '", entry, "'");
    figures.push_back(figure);
  }
  return figures;
}

int MachineCores() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

class Rows {
 public:
  void Run(const TrainRow& row) {
    const std::string name = "train_step/" + row.Name();
    ResetPeakResident();
    const MeasuredRow measured = MeasureRow(row, absl::GetFlag(FLAGS_warmup), absl::GetFlag(FLAGS_steps));
    const double resident = static_cast<double>(PeakResidentBytes()) / (1 << 20);
    ReportRate(name, row, measured);
    ReportPeers(name, row, static_cast<double>(row.num_tokens()) / measured.seconds(), resident);
    Report({.name = name + "/tensors",
            .value = static_cast<double>(measured.tensor_bytes) / (1 << 20),
            .unit = "MiB"});
    if (row.num_ranks() > 1) {
      ReportSpread(name, row, measured);
    } else if (absl::GetFlag(FLAGS_bound)) {
      ReportBound(name, row, measured);
    }
  }

 private:
  void ReportRate(const std::string& name, const TrainRow& row, const MeasuredRow& measured) {
    const double rate = static_cast<double>(row.num_tokens()) / measured.seconds();
    if (row.parallel == "none") single_rank_rates_[row.model + row.dtype] = rate;
    Report({.name = name, .value = rate, .unit = "tokens/s"});
    const int cores = row.num_cores(MachineCores());
    const bool is_bf16 = row.ComputeDType() == DType::kBF16;
    Report({.name = name + "/flops",
            .value = StepFlops(row.Config(), row.batch, row.context) / measured.seconds() / 1e9,
            .unit = "GFLOP/s",
            .limit = (is_bf16 ? PeakFlopsBF16(cores) : PeakFlopsF32(cores)) / 1e9,
            .limit_is = absl::StrCat(row.dtype, " peak, ", cores, cores == 1 ? " core" : " cores")});
  }

  void ReportPeers(const std::string& name, const TrainRow& row, double rate, double resident) {
    bool has_memory = false;
    for (const PeerFigure& figure : PeersFromFlags()) {
      if (!figure.row.empty() && figure.row != row.Name()) continue;
      has_memory |= figure.is_memory;
      Report({.name = figure.is_memory ? name + "/rss" : name,
              .value = figure.is_memory ? resident : rate,
              .unit = figure.is_memory ? "MiB" : "tokens/s",
              .limit = figure.value,
              .limit_is = figure.peer,
              .target = figure.is_memory         ? 1.0
                        : figure.peer == "llm.c" ? 4.0
                                                 : 1.5,
              .less_is_better = figure.is_memory});
    }
    if (!has_memory) Report({.name = name + "/rss", .value = resident, .unit = "MiB"});
  }

  void ReportSpread(const std::string& name, const TrainRow& row, const MeasuredRow& measured) {
    Report({.name = name + "/communication",
            .value = 100 * measured.exposed_fraction(),
            .unit = "% of step",
            .limit = 5,
            .limit_is = "5%",
            .target = row.parallel == "ddp" ? 1.0 : 0.0,
            .less_is_better = true});
    const auto single = single_rank_rates_.find(row.model + row.dtype);
    if (single == single_rank_rates_.end()) return;
    Report({.name = name + "/beside_one_rank",
            .value = static_cast<double>(row.num_tokens()) / measured.seconds(),
            .unit = "tokens/s",
            .limit = single->second,
            .limit_is = "one rank with two threads",
            .target = row.parallel == "ddp" ? 0.95 : 0.0});
  }

  void ReportBound(const std::string& name, const TrainRow& row, const MeasuredRow& measured) {
    const GptConfig config = row.Config();
    double seconds = 0;
    double flops = 0;
    const auto body = [&](World& world) {
      const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh());
      for (const StepProduct& product : ProductsOf(config, row.batch, row.context)) {
        const auto count = static_cast<double>(product.count);
        seconds += count * SecondsOf(product, context, row.ComputeDType(), /*seconds=*/0.1);
        flops += count * product.flops();
      }
    };
    RunRanks(/*num_ranks=*/1, body, {.threads_per_rank = row.threads});
    Report({.name = name + "/products", .value = seconds * 1e3, .unit = "ms"});
    seconds *= 1 + AttentionFlops(config, row.batch, row.context) / flops;
    constexpr double kAdamWBytes = 28;  // p, m and v read and written, g read
    seconds += kAdamWBytes * static_cast<double>(measured.parameters) /
               TriadBytesPerSecond(int64_t{512} << 20, row.num_cores(MachineCores()));
    Report({.name = name + "/bound",
            .value = measured.seconds() * 1e3,
            .unit = "ms",
            .limit = seconds * 1e3,
            .limit_is = "its products alone + AdamW at triad",
            .target = 1.25,
            .less_is_better = true});
  }

  std::map<std::string, double> single_rank_rates_;  // by model and dtype
};

void RunProfile(const TrainRow& row) {
  Tracer tracer;
  int64_t from_ns = 0;
  const int steps = absl::GetFlag(FLAGS_steps);
  const MeasuredRow measured = MeasureRow(row, absl::GetFlag(FLAGS_warmup), steps, &tracer, &from_ns);
  double step_ms = 0;  // the mean, as the lines' sums
  for (double seconds : measured.step_seconds) step_ms += seconds * 1e3 / steps;
  double rest_ms = step_ms;
  const auto report = [&](const std::string& what, double ms) {
    Report({.name = absl::StrCat("profile/", row.Name(), "/", what),
            .value = ms,
            .unit = "ms",
            .limit = step_ms,
            .limit_is = "step"});
  };
  for (const ProfileLine& line : ProfileOf(tracer, from_ns)) {
    const double ms = line.seconds * 1e3 / steps;
    rest_ms -= ms;
    report(absl::StrCat(line.name, " x", line.num_calls / steps), ms);
  }
  report("outside kernels", rest_ms);
}

int Run() {
  Rows rows;
  for (const TrainRow& row : RowsFromFlags()) {
    if (absl::GetFlag(FLAGS_profile)) {
      RunProfile(row);
    } else {
      rows.Run(row);
    }
  }
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Run); }

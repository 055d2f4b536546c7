// How fast the communicators are. `local`: ranks that are threads, beside what the machine's memory allows, a
// plain version of the same with threads, and peers. `gloo`, `gloo_tcp`: ranks that are processes of this
// machine, by shared memory or by TCP, 2 and 4 of them, beside peers.
//
//   bazel run //benchmarks:collectives -- --backend=gloo --peer="$(benchmarks/peers/openmpi_collectives.sh)"
//   bazel run //benchmarks:collectives
//   bazel run //benchmarks:collectives -- --only=all_reduce/2r
//   --peer="$(benchmarks/peers/openmpi_collectives.sh)"
//
// A line is COLLECTIVE/RANKSr/SIZE: the time of one call, from a common start until all ranks have returned,
// in a loop of calls. SIZE is the bytes of the rank's whole buffer: what all_reduce reduces, all_gather
// gathers to, reduce_scatter starts from, all_to_all and send_recv (a ring) send, broadcast copies. Up to 32
// KiB a line is microseconds, above it is SIZE / time. `_out` writes to another buffer, without it all_reduce
// is in place. `_list` is a list of sixteen parts as one operation, beside the same parts one by one, in turn
// (`gloo`, `gloo_tcp`; from 64 KiB on).
//
// The memcpy bound, the limit of every line: a collective has to read all inputs and write all outputs once,
// and to bring its ranks together once. Shared evenly, a rank reads R and writes W bytes, and touches T
// distinct ones; a copy of b bytes reads b and writes b. So the bound is
//   one barrier + (R + W) / 2 bytes at the rate at which as many threads copy (memcpy) buffers of T / 2
//   bytes.
// Where ranks outnumber cores, as many threads as cores copy all ranks' parts, and instead of the barrier
// every rank has to be given a core once: as many hand-overs from thread to thread as there are ranks. (The
// kernel may leave all but one of the ranks on one core.) Barrier and hand-over are measured in the same run.
//
// Targets: all_reduce at or above the plain version, and above peers; 4 bytes among two
// ranks in at most 0.5 us; 4 bytes among more ranks than cores in at most twice their hand-overs (which are
// timed between two threads that find their data in the cache, as many threads do not), so that the time
// grows as the ranks do. Groups of more than 4 are measured at 4 B and 1 MiB alone.

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "benchmarks/figure.h"
#include "benchmarks/plain_collectives.h"
#include "benchmarks/process_collectives.h"
#include "benchmarks/rank_timer.h"
#include "runtime/base/error.h"
#include "runtime/base/flags.h"
#include "runtime/comm/flight_recorder.h"
#include "runtime/launch/run_ranks.h"

ABSL_FLAG(std::string, backend, "local", "local, gloo (processes that share memory) or gloo_tcp");
ABSL_FLAG(std::vector<std::string>, ranks, std::vector<std::string>({"2", "4", "8", "16", "32"}),
          "numbers of ranks, 2 to 64");
ABSL_FLAG(std::vector<std::string>, sizes,
          std::vector<std::string>({"4B", "64B", "1KiB", "4KiB", "32KiB", "256KiB", "1MiB", "4MiB", "16MiB",
                                    "64MiB"}),
          "bytes of a rank's buffer: multiples of 4 as 4B, 1KiB, 64MiB");
ABSL_FLAG(std::string, only, "", "measure only what has this in its name");
ABSL_FLAG(std::string, peer, "",
          "peers' times, as their scripts print them: PEER:NAME=NS,... with the names of this program");

namespace weft {
namespace {

constexpr int64_t kKiB = 1024;
constexpr double kLatencyTargetUs = 0.5;
constexpr double kCrowdedTarget = 2;
constexpr int kMostOfAllSizes = 4;  // ranks: groups of more are measured at 4 B and 1 MiB

int NumCores() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

FlagsUsage Usage() {
  return {.summary = "Measures the communicators' collectives.",
          .groups = {{"Measurement", {"backend", "ranks", "sizes", "only", "peer", "log_format"}}},
          .examples = {"collectives --only=all_reduce/2r", "collectives --ranks=2 --sizes=4B,1MiB"}};
}

// "1MiB".
std::string SizeName(int64_t num_bytes) {
  if (num_bytes % (kKiB * kKiB) == 0) return absl::StrCat(num_bytes / (kKiB * kKiB), "MiB");
  if (num_bytes % kKiB == 0) return absl::StrCat(num_bytes / kKiB, "KiB");
  return absl::StrCat(num_bytes, "B");
}

// Errors: InvalidArgument for a text that is not a size.
int64_t ParseSize(absl::string_view text) {
  for (const auto& [suffix, unit] :
       {std::pair<absl::string_view, int64_t>{"MiB", kKiB * kKiB}, {"KiB", kKiB}, {"B", 1}}) {
    int64_t number = 0;
    if (!absl::EndsWith(text, suffix)) continue;
    if (!absl::SimpleAtoi(text.substr(0, text.size() - suffix.size()), &number)) break;
    if (number > 0 && number * unit % 4 == 0) return number * unit;
  }
  ThrowInvalidArgument(
      absl::StrCat("--sizes: expected a multiple of 4 bytes as 4B, 1KiB or 64MiB, got '", text, "'"));
}

struct PeerTime {
  std::string peer;
  double ns = 0;
};

// What the peers took for `name`.
// Errors: InvalidArgument for a --peer that does not read so.
std::vector<PeerTime> PeerTimes(absl::string_view name) {
  std::vector<PeerTime> times;
  for (absl::string_view entry : absl::StrSplit(absl::GetFlag(FLAGS_peer), ',', absl::SkipWhitespace())) {
    const std::vector<absl::string_view> parts = absl::StrSplit(entry, absl::ByAnyChar(":="));
    double ns = 0;
    WEFT_REQUIRE(parts.size() == 3 && absl::SimpleAtod(parts[2], &ns) && ns > 0,
                 "--peer: expected PEER:NAME=NS, got '", entry, "'");
    if (parts[1] == name) times.push_back({std::string(parts[0]), ns});
  }
  return times;
}

// One line beside `limit_ns`, as a time or as a rate.
void ReportBeside(const std::string& name, int64_t size, double ns, double limit_ns,
                  const std::string& limit_is, double target) {
  Figure figure = {.name = name, .limit_is = limit_is, .target = target};
  const auto gigabytes = [size](double t) { return t == 0 ? 0 : static_cast<double>(size) / t; };
  if (size <= 32 * kKiB) {
    figure.value = ns / 1e3, figure.limit = limit_ns / 1e3, figure.unit = "us", figure.less_is_better = true;
  } else {
    figure.value = gigabytes(ns), figure.limit = gigabytes(limit_ns), figure.unit = "GB/s";
  }
  Report(figure);
}

// One collective at one size: this rank's call of it, and what a rank's part reads, writes and touches.
struct Case {
  std::string name;
  std::function<void()> call;
  double bytes_read = 0;
  double bytes_written = 0;
  double bytes_touched = 0;  // distinct ones
  DType dtype = DType::kF32;
};

// One rank's buffers and those of its team.
class Rank {
 public:
  Rank(World& world, RankTimer& timer, std::vector<float*>& inputs, std::vector<float*>& outputs,
       float* scratch, int64_t max_bytes, double hand_over_ns)
      : world_(world),
        timer_(timer),
        inputs_(inputs),
        outputs_(outputs),
        scratch_(scratch),
        hand_over_ns_(hand_over_ns) {
    std::vector<int> ranks(world.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    group_ = world.NewGroup("dp", ranks);
    // The first ranks copy for the others too.
    const int64_t num_parts = world.rank() < NumCores() ? (world.size() + NumCores() - 1) / NumCores() : 1;
    a_ = Zeros(max_bytes * num_parts);
    b_ = Zeros(max_bytes * num_parts);
    inputs_[world.rank()] = a_.data<float>();
    outputs_[world.rank()] = b_.data<float>();
  }

  std::vector<Case> Cases(int64_t size);
  void MeasureCase(const Case& measured, int64_t size);

 private:
  Tensor Zeros(int64_t num_bytes) {
    const Tensor tensor = Tensor::Empty(world_.allocator(), DType::kF32, {num_bytes / 4});
    std::memset(tensor.data(), 0, tensor.num_bytes());
    return tensor;
  }

  // The copies of the memcpy bound.
  struct Bound {
    std::function<void()> copy;
    double copies = 0;  // how many of them the collective is worth
  };
  Bound BoundOf(const Case& measured);

  std::string NameOf(const std::string& name, int64_t size) const {
    return absl::StrCat(name, "/", world_.size(), "r/", SizeName(size));
  }

  World& world_;
  RankTimer& timer_;
  std::vector<float*>& inputs_;
  std::vector<float*>& outputs_;
  float* const scratch_;
  const double hand_over_ns_;
  std::shared_ptr<Communicator> group_;
  Tensor a_;
  Tensor b_;
};

std::vector<Case> Rank::Cases(int64_t size) {
  const int n = world_.size();
  const int me = world_.rank();
  const int64_t count = size / 4;
  const Tensor a = a_.Slice(0, 0, count);
  const Tensor b = b_.Slice(0, 0, count);
  std::vector<int64_t> counts(n);
  for (int rank = 0; rank < n; ++rank) counts[rank] = count * (rank + 1) / n - count * rank / n;
  std::vector<int64_t> traded(n);  // with each peer: the same both ways
  for (int peer = 0; peer < n; ++peer) traded[peer] = counts[(me + peer) % n];
  const Tensor piece = a.Slice(0, 0, counts[me]);
  const Tensor small = b.Slice(0, 0, counts[me]);
  const Tensor halves = Tensor::Empty(world_.allocator(), DType::kBF16, {2 * count});
  std::memset(halves.data(), 0, size);
  const double s = static_cast<double>(size);
  return {
      {"all_reduce", [=, this] { group_->AllReduce(a, a, ReduceOp::kSum); }, s, s, s},
      {"all_reduce_out", [=, this] { group_->AllReduce(a, b, ReduceOp::kSum); }, s, s, 2 * s},
      {"all_reduce_bf16", [=, this] { group_->AllReduce(halves, halves, ReduceOp::kSum); }, s, s, s},
      {"all_gather", [=, this] { group_->AllGather(piece, b, counts); }, s / n, s, s + s / n},
      {"reduce_scatter", [=, this] { group_->ReduceScatter(a, small, counts, ReduceOp::kSum); }, s, s / n,
       s + s / n},
      {"all_to_all", [=, this] { group_->AllToAll(a, traded, b, traded); }, s, s, 2 * s},
      {"broadcast", [=, this] { group_->Broadcast(a, 0); }, s / n, s - s / n, s},
      {"send_recv",
       [=, this] {
         group_->SendRecv({{(me + 1) % n, a}}, {{(me + n - 1) % n, b}});
       },
       s, s, 2 * s},
  };
}

// What the bound of a collective is made of: the calls to time, and the bound from their times.
Rank::Bound Rank::BoundOf(const Case& measured) {
  // As many ranks copy as there are cores, the parts of the others too.
  const int threads = std::min(world_.size(), NumCores());
  const double parts = static_cast<double>(world_.size()) / threads;
  const int64_t num_bytes = std::max<int64_t>(1, static_cast<int64_t>(parts * measured.bytes_touched / 2));
  Bound bound;
  bound.copy = [this, num_bytes, threads] {
    if (world_.rank() < threads) std::memcpy(b_.data(), a_.data(), num_bytes);
  };
  bound.copies = parts * (measured.bytes_read + measured.bytes_written) / 2 / static_cast<double>(num_bytes);
  return bound;
}

void Rank::MeasureCase(const Case& measured, int64_t size) {
  const std::string name = NameOf(measured.name, size);
  if (!absl::StrContains(name, absl::GetFlag(FLAGS_only))) return;
  const bool in_place = measured.name == "all_reduce";
  const bool has_plain = in_place || measured.name == "all_reduce_out";
  const Bound bound = BoundOf(measured);
  std::vector<std::function<void()>> calls = {measured.call, bound.copy, [this] { timer_.barrier().Wait(); }};
  if (has_plain) {
    calls.push_back([&] {
      PlainAllReduce(timer_.barrier(), world_.rank(), inputs_, in_place ? inputs_ : outputs_, scratch_,
                     size / 4);
    });
  }
  world_.ledger().Clear();
  // Long enough that starting and ending a batch, which takes milliseconds with many ranks, does not count.
  const double seconds = 0.02 * std::max(1, world_.size() / NumCores());
  const std::vector<double> ns = timer_.Measure(world_.rank(), calls, seconds);
  if (world_.rank() != 0) return;
  const bool crowded = world_.size() > NumCores();
  const double together_ns = crowded ? hand_over_ns_ * world_.size() : ns[2];
  const double target = crowded && size == 4 ? kCrowdedTarget : 0;
  ReportBeside(name, size, ns[0], together_ns + bound.copies * ns[1], "memcpy bound", target);
  if (has_plain) ReportBeside(name, size, ns[0], ns[3], "plain threads", 1);
  if (in_place && size == 4 && world_.size() == 2) {
    ReportBeside(name, size, ns[0], kLatencyTargetUs * 1e3, "the target", 1);
  }
  for (const PeerTime& time : PeerTimes(name)) ReportBeside(name, size, ns[0], time.ns, time.peer, 1);
}

void MeasureRanks(int num_ranks, const std::vector<int64_t>& sizes, double hand_over_ns) {
  const bool all_collectives = num_ranks <= kMostOfAllSizes;
  const int64_t max_bytes = *std::max_element(sizes.begin(), sizes.end());
  RankTimer timer(num_ranks);
  std::vector<float*> inputs(num_ranks);
  std::vector<float*> outputs(num_ranks);
  const Tensor scratch = Tensor::Empty(MakeCpuAllocator(), DType::kF32, {max_bytes / 4});
  const auto body = [&](World& world) {
    Rank rank(world, timer, inputs, outputs, scratch.data<float>(), max_bytes, hand_over_ns);
    for (int64_t size : sizes) {
      std::vector<Case> cases = rank.Cases(size);
      if (!all_collectives) cases.resize(1);  // all_reduce
      for (const Case& measured : cases) rank.MeasureCase(measured, size);
    }
    timer.barrier().Wait();  // the buffers are the peers' too
  };
  RunRanks(num_ranks, body, {.threads_per_rank = 1});
}

// A line of a collective by processes, beside each peer's; without one, alone. A list beside its parts.
void ReportProcesses(const std::string& name, int64_t size, double ns, double alone_ns) {
  if (alone_ns > 0) return ReportBeside(name, size, ns, alone_ns, "part by part", 1);
  const std::vector<PeerTime> peers = PeerTimes(name);
  for (const PeerTime& time : peers) ReportBeside(name, size, ns, time.ns, time.peer, 1);
  if (!peers.empty()) return;
  const bool is_time = size <= 32 * kKiB;
  Report({.name = name,
          .value = is_time ? ns / 1e3 : static_cast<double>(size) / ns,
          .unit = is_time ? "us" : "GB/s"});
}

void MeasureGloo(int num_ranks, const std::vector<int64_t>& sizes, bool over_tcp) {
  const auto name_of = [num_ranks](const std::string& collective, int64_t size) {
    return absl::StrCat(collective, "/", num_ranks, "r/", SizeName(size));
  };
  ProcessCollectives measured = {.num_ranks = num_ranks, .over_tcp = over_tcp, .sizes = sizes};
  measured.wanted = [&](const std::string& collective, int64_t size) {
    return absl::StrContains(name_of(collective, size), absl::GetFlag(FLAGS_only));
  };
  measured.report = [&](const std::string& collective, int64_t size, double ns, double alone_ns) {
    ReportProcesses(name_of(collective, size), size, ns, alone_ns);
  };
  MeasureProcesses(measured);
}

// What the flight recorder adds to an operation (the clock is read for the ledger anyhow), beside the
// smallest one that it records.
void ReportRecorder() {
  if (!absl::StrContains("flight_recorder", absl::GetFlag(FLAGS_only))) return;
  FlightRecorder recorder;
  FlightRecorder::OpenedGroup* const group = recorder.OpenGroup("dp", {0, 1});
  FlightEntry entry;
  entry.kind = CollectiveKind::kAllReduce;
  entry.issued_ns = FlightClock();
  const double ns = MedianNanoseconds([&] {
    ++entry.sequence;
    recorder.End(recorder.Issue(group, entry), entry.issued_ns, /*ok=*/true);
  });
  Report({.name = "flight_recorder",
          .value = ns,
          .unit = "ns",
          .limit = kLatencyTargetUs * 1e3,
          .limit_is = "an all_reduce of 4 B",
          .target = 0.05,
          .less_is_better = true});
}

int Run() {
  const std::string backend = absl::GetFlag(FLAGS_backend);
  WEFT_REQUIRE(backend == "local" || backend == "gloo" || backend == "gloo_tcp",
               "--backend: expected local, gloo or gloo_tcp, got '", backend, "'");
  std::vector<int64_t> sizes;
  std::vector<int64_t> few_sizes;
  for (const std::string& text : absl::GetFlag(FLAGS_sizes)) {
    sizes.push_back(ParseSize(text));
    if (sizes.back() == 4 || sizes.back() == kKiB * kKiB) few_sizes.push_back(sizes.back());
  }
  const double hand_over_ns = backend == "local" ? HandOverNanoseconds() : 0;
  if (backend == "local") {
    Report({.name = "hand_over", .value = hand_over_ns / 1e3, .unit = "us"});
    ReportRecorder();
  }
  for (const std::string& text : absl::GetFlag(FLAGS_ranks)) {
    int num_ranks = 0;
    WEFT_REQUIRE(absl::SimpleAtoi(text, &num_ranks) && num_ranks >= 2 && num_ranks <= 64,
                 "--ranks: expected 2 to 64, got '", text, "'");
    if (backend != "local") {
      if (num_ranks <= kMostOfAllSizes && !sizes.empty())
        MeasureGloo(num_ranks, sizes, backend == "gloo_tcp");
      continue;
    }
    const std::vector<int64_t>& measured = num_ranks <= kMostOfAllSizes ? sizes : few_sizes;
    if (!measured.empty()) MeasureRanks(num_ranks, measured, hand_over_ns);
  }
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Run); }

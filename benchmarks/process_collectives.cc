#include "benchmarks/process_collectives.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/comm/gloo/communicator.h"
#include "runtime/device/allocator.h"
#include "runtime/store/file_store.h"
#include "runtime/tensor/tensor.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kBatchSeconds = 0.02;
constexpr int kBatches = 5;

// One rank's process.
class Rank {
 public:
  Rank(const ProcessCollectives& measured, int rank, const std::string& folder)
      : measured_(measured), rank_(rank), hub_(MakeHub(measured, rank, folder)) {
    std::vector<int> ranks(measured.num_ranks);
    std::iota(ranks.begin(), ranks.end(), 0);
    group_ = MakeGlooCommunicator(hub_, "dp", ranks, /*ledger=*/nullptr, &workers_);
    const int64_t max_bytes = *std::max_element(measured.sizes.begin(), measured.sizes.end());
    a_ = Zeros(max_bytes / 4);
    b_ = Zeros(max_bytes / 4);
    count_ = Zeros(1);
  }
  ~Rank() {
    group_ = nullptr;
    hub_->Finish();
  }

  void MeasureAll() {
    for (int64_t size : measured_.sizes) {
      for (const Case& measured : Cases(size)) {
        if (!measured_.wanted(measured.name, size)) continue;
        const auto [ns, alone_ns] = MedianNanoseconds(measured);
        if (rank_ == 0) measured_.report(measured.name, size, ns, alone_ns);
      }
    }
  }

 private:
  using Call = std::function<void()>;
  struct Case {
    std::string name;
    Call call;
    Call alone = {};  // of a list: its parts, one by one
  };

  static std::shared_ptr<GlooHub> MakeHub(const ProcessCollectives& measured, int rank,
                                          const std::string& folder) {
    GlooOptions options;
    options.path = measured.over_tcp ? GlooPath::kTcp : GlooPath::kSharedMemory;
    options.address = "127.0.0.1";
    return std::make_shared<GlooHub>(std::make_shared<FileStore>(folder), rank, measured.num_ranks, options);
  }

  static Tensor Zeros(int64_t count) {
    const Tensor tensor = Tensor::Empty(MakeCpuAllocator(), DType::kF32, {count});
    std::memset(tensor.data(), 0, tensor.num_bytes());
    return tensor;
  }

  std::vector<Case> Cases(int64_t size);
  std::vector<Case> Lists(int64_t size);
  std::pair<double, double> MedianNanoseconds(const Case& measured);

  // Nanoseconds of a call, from a common start until all have made it `count` times.
  double Batch(const Call& call, int64_t count) {
    group_->Barrier();
    const auto begin = Clock::now();
    for (int64_t i = 0; i < count; ++i) call();
    group_->Barrier();
    return std::chrono::duration<double, std::nano>(Clock::now() - begin).count() /
           static_cast<double>(count);
  }

  const ProcessCollectives& measured_;
  const int rank_;
  WorkerPool workers_;
  const std::shared_ptr<GlooHub> hub_;
  std::shared_ptr<Communicator> group_;
  Tensor a_;
  Tensor b_;
  Tensor count_;  // of calls in a batch, as rank 0 says
};

// As //benchmarks:collectives has them.
std::vector<Rank::Case> Rank::Cases(int64_t size) {
  const int n = measured_.num_ranks;
  const int me = rank_;
  const int64_t count = size / 4;
  const Tensor a = a_.Slice(0, 0, count);
  const Tensor b = b_.Slice(0, 0, count);
  std::vector<int64_t> counts(n);
  for (int rank = 0; rank < n; ++rank) counts[rank] = count * (rank + 1) / n - count * rank / n;
  std::vector<int64_t> traded(n);  // with each peer: the same both ways
  for (int peer = 0; peer < n; ++peer) traded[peer] = counts[(me + peer) % n];
  const Tensor piece = a.Slice(0, 0, counts[me]);
  const Tensor small = b.Slice(0, 0, counts[me]);
  std::vector<Case> cases = {
      {"all_reduce", [=, this] { group_->AllReduce(a, a, ReduceOp::kSum); }},
      {"all_reduce_out", [=, this] { group_->AllReduce(a, b, ReduceOp::kSum); }},
      {"all_gather", [=, this] { group_->AllGather(piece, b, counts); }},
      {"reduce_scatter", [=, this] { group_->ReduceScatter(a, small, counts, ReduceOp::kSum); }},
      {"all_to_all", [=, this] { group_->AllToAll(a, traded, b, traded); }},
      {"broadcast", [=, this] { group_->Broadcast(a, 0); }},
      {"send_recv",
       [=, this] {
         group_->SendRecv({{(me + 1) % n, a}}, {{(me + n - 1) % n, b}});
       }},
  };
  if (size < 64 << 10) return cases;
  for (Case& list : Lists(size)) cases.push_back(std::move(list));
  return cases;
}

// Lists as a model's parameters make them: eight large parts, each with a small one of a 64th of it behind it.
std::vector<Rank::Case> Rank::Lists(int64_t size) {
  constexpr int64_t kPairs = 8;
  const int n = measured_.num_ranks;
  const int64_t unit = size / 4 / (kPairs * 65);
  std::vector<CollectivePart> sums, gathers, scatters;
  int64_t begin = 0;
  for (int64_t i = 0; i < 2 * kPairs; ++i) {
    const int64_t count = i % 2 == 0 ? 64 * unit : unit;
    CollectiveDescriptor::Counts counts(n);
    for (int rank = 0; rank < n; ++rank) counts[rank] = count * (rank + 1) / n - count * rank / n;
    const Tensor a = a_.Slice(0, begin, count);
    const Tensor b = b_.Slice(0, begin, count);
    sums.push_back({a, a});
    gathers.push_back({a.Slice(0, 0, counts[rank_]), b, counts});
    scatters.push_back({a, b.Slice(0, 0, counts[rank_]), counts});
    begin += count;
  }
  return {
      {"all_reduce_list", [=, this] { group_->AllReduceEach(sums, ReduceOp::kSum); },
       [=, this] {
         for (const CollectivePart& part : sums) group_->AllReduce(part.input, part.output, ReduceOp::kSum);
       }},
      {"all_gather_list", [=, this] { group_->AllGatherEach(gathers); },
       [=, this] {
         for (const CollectivePart& part : gathers) group_->AllGather(part.input, part.output, part.counts);
       }},
      {"reduce_scatter_list", [=, this] { group_->ReduceScatterEach(scatters, ReduceOp::kSum); },
       [=, this] {
         for (const CollectivePart& part : scatters) {
           group_->ReduceScatter(part.input, part.output, part.counts, ReduceOp::kSum);
         }
       }},
  };
}

std::pair<double, double> Rank::MedianNanoseconds(const Case& measured) {
  const Call& call = measured.call;
  call();
  // Batches grow until one is long enough.
  int64_t count = 1;
  for (;;) {
    const double ns = Batch(call, count);
    const double wanted = kBatchSeconds * 1e9 / ns;
    *count_.data<float>() =
        static_cast<float>(std::min(std::max(1.0, wanted), 10.0 * static_cast<double>(count)));
    group_->Broadcast(count_, 0);
    const auto next = static_cast<int64_t>(*count_.data<float>());
    const bool enough = next <= 2 * count;
    count = std::max(count, next);
    if (enough) break;
  }
  std::vector<double> batches, alone;
  for (int i = 0; i < kBatches; ++i) {
    batches.push_back(Batch(call, count));
    alone.push_back(measured.alone ? Batch(measured.alone, count) : 0);
  }
  std::sort(batches.begin(), batches.end());
  std::sort(alone.begin(), alone.end());
  return {batches[kBatches / 2], alone[kBatches / 2]};
}

// A core of its own, while there are enough: mpirun does the same for the ranks of the peer. Not by TCP,
// where Gloo's thread needs one beside the rank's.
void Bind(int rank, int num_ranks) {
  const int num_cores = static_cast<int>(std::thread::hardware_concurrency());
  if (num_ranks > num_cores) return;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(rank, &cores);
  sched_setaffinity(0, sizeof(cores), &cores);
}

int RunRank(const ProcessCollectives& measured, int rank, const std::string& folder) {
  if (!measured.over_tcp) Bind(rank, measured.num_ranks);
  try {
    Rank(measured, rank, folder).MeasureAll();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return 1;
  }
}

}  // namespace

void MeasureProcesses(const ProcessCollectives& measured) {
  std::string folder = "/tmp/weft.XXXXXX";
  WEFT_CHECK(mkdtemp(folder.data()) != nullptr, "mkdtemp");
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < measured.num_ranks; ++rank) {
    const pid_t pid = fork();
    WEFT_CHECK(pid >= 0, "fork");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int code = RunRank(measured, rank, folder);
      std::fflush(nullptr);
      _exit(code);
    }
    children.push_back(pid);
  }
  int num_failed = 0;
  for (pid_t pid : children) {
    int status = 0;
    waitpid(pid, &status, 0);
    num_failed += status != 0 ? 1 : 0;
  }
  std::filesystem::remove_all(folder);
  WEFT_CHECK(num_failed == 0, num_failed, " of ", measured.num_ranks, " ranks have failed");
}

}  // namespace weft

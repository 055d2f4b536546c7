// How fast the `mpi` communicator is, beside MPI's own blocking collectives in the same processes.
//
//   bazel build //benchmarks:mpi_collectives
//   mpirun -n 2 bazel-bin/benchmarks/mpi_collectives
//
// A line is COLLECTIVE/RANKSr/SIZE, as of //benchmarks:collectives: SIZE is the bytes of the rank's whole
// buffer, the time that of a call in a loop of calls, from a common start until all ranks have returned.
// MPI's reductions combine in an order of their own; Weft's give every backend's bits, and compare what the
// ranks have called.

#include <mpi.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/figure.h"
#include "benchmarks/peers/peer_times.h"
#include "runtime/base/flags.h"
#include "runtime/comm/mpi/communicator.h"
#include "runtime/comm/mpi/environment.h"

ABSL_FLAG(std::string, only, "", "measure only what has this in its name");
ABSL_FLAG(int64_t, block_bytes, weft::MpiOptions().block_bytes,
          "bytes of a block of a large reduction, at least 8");

namespace weft {
namespace {

FlagsUsage Usage() {
  return {.summary = "Measures the mpi communicator beside MPI's own collectives. Run it by mpirun.",
          .groups = {{"What to measure", {"only", "block_bytes"}}, {"Output", {"log_format"}}},
          .examples = {"mpirun -n 2 bazel-bin/benchmarks/mpi_collectives --only=all_reduce/"}};
}

class Bench {
 public:
  explicit Bench(MpiEnvironment& environment) : rank_(environment.rank()), size_(environment.size()) {
    std::vector<int> ranks(size_);
    std::iota(ranks.begin(), ranks.end(), 0);
    group_ = MakeMpiCommunicator(environment.NewHub(size_, {.block_bytes = absl::GetFlag(FLAGS_block_bytes)}),
                                 "dp", ranks, /*ledger=*/nullptr, &workers_);
  }

  void Measure(int64_t num_bytes) {
    const int64_t count = num_bytes / 4;
    const auto zeros = [&](int64_t n) {
      const Tensor tensor = Tensor::Empty(allocator_, DType::kF32, {n});
      std::fill_n(tensor.data<float>(), n, 0.0f);
      return tensor;
    };
    const Tensor a = zeros(count);
    const Tensor b = zeros(count);
    std::vector<int64_t> counts(size_);
    for (int rank = 0; rank < size_; ++rank) counts[rank] = count * (rank + 1) / size_ - count * rank / size_;
    const std::vector<int> mpi_counts(counts.begin(), counts.end());
    std::vector<int> offsets(size_);
    std::partial_sum(mpi_counts.begin(), mpi_counts.end() - 1, offsets.begin() + 1);
    const Tensor piece = zeros(counts[rank_]);
    const int n = static_cast<int>(count);
    const int mine = mpi_counts[rank_];
    const auto sum = ReduceOp::kSum;
    Compare(
        "all_reduce", num_bytes, [&] { group_->AllReduce(a, a, sum); },
        [&] { MPI_Allreduce(MPI_IN_PLACE, a.data(), n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
    Compare(
        "reduce_scatter", num_bytes, [&] { group_->ReduceScatter(a, piece, counts, sum); },
        [&] {
          MPI_Reduce_scatter(a.data(), piece.data(), mpi_counts.data(), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        });
    Compare(
        "all_gather", num_bytes, [&] { group_->AllGather(piece, b, counts); },
        [&] {
          MPI_Allgatherv(piece.data(), mine, MPI_FLOAT, b.data(), mpi_counts.data(), offsets.data(),
                         MPI_FLOAT, MPI_COMM_WORLD);
        });
    Compare(
        "broadcast", num_bytes, [&] { group_->Broadcast(a, 0); },
        [&] { MPI_Bcast(a.data(), n, MPI_FLOAT, 0, MPI_COMM_WORLD); });
    const int next = (rank_ + 1) % size_;
    const int previous = (rank_ + size_ - 1) % size_;
    Compare(
        "send_recv", num_bytes,
        [&] {
          group_->SendRecv({{next, a}}, {{previous, b}});
        },
        [&] {
          MPI_Sendrecv(a.data(), n, MPI_FLOAT, next, 0, b.data(), n, MPI_FLOAT, previous, 0, MPI_COMM_WORLD,
                       MPI_STATUS_IGNORE);
        });
  }

 private:
  void Compare(const std::string& collective, int64_t num_bytes, const std::function<void()>& weft,
               const std::function<void()>& plain) {
    const std::string name = absl::StrCat(collective, "/", size_, "r/", peers::SizeName(num_bytes));
    if (!absl::StrContains(name, absl::GetFlag(FLAGS_only))) return;
    const auto barrier = [] { MPI_Barrier(MPI_COMM_WORLD); };
    const auto agree = [](int64_t number) {
      MPI_Bcast(&number, 1, MPI_INT64_T, 0, MPI_COMM_WORLD);
      return number;
    };
    const double ns = peers::CallNanoseconds(weft, barrier, agree);
    const double plain_ns = peers::CallNanoseconds(plain, barrier, agree);
    if (rank_ != 0) return;
    Figure figure = {.name = name, .limit_is = "MPI's own"};
    if (num_bytes <= 32 << 10) {
      figure.value = ns / 1e3, figure.limit = plain_ns / 1e3, figure.unit = "us",
      figure.less_is_better = true;
    } else {
      figure.value = static_cast<double>(num_bytes) / ns, figure.unit = "GB/s";
      figure.limit = static_cast<double>(num_bytes) / plain_ns;
    }
    Report(figure);
  }

  const int rank_;
  const int size_;
  const std::shared_ptr<Allocator> allocator_ = MakeCpuAllocator();
  WorkerPool workers_;
  std::shared_ptr<Communicator> group_;
};

int Run() {
  MpiEnvironment environment;
  Bench bench(environment);
  for (const int64_t num_bytes : peers::kSizes) bench.Measure(num_bytes);
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Run); }

// The tests of the `mpi` backend: every process of an MPI job runs all of them, in the same order.
//
//   mpirun -n 8 program          the tests
//   program                      those of a job of one
//   mpirun -n 2 program desert   rank 1's group fails while rank 0 does not end: rank 1 ends the job
//   mpirun -n 2 program leak     rank 1 loses memory; says "leaks are looked for" if they are

#include "tests/runtime/comm/mpi/program.h"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/comm/mpi/communicator.h"

namespace weft {
namespace {

MpiEnvironment* environment = nullptr;

// How a run ended in one process; processes share a machine, so their clocks compare.
struct Outcome {
  int64_t failed_at = std::numeric_limits<int64_t>::max();
  int code = 0;
  char message[2048] = "";
};

void SetOutcome(Outcome& outcome, absl::StatusCode code, const std::string& message) {
  outcome.failed_at = std::chrono::steady_clock::now().time_since_epoch().count();
  outcome.code = static_cast<int>(code);
  std::strncpy(outcome.message, message.c_str(), sizeof(outcome.message) - 1);
}

Outcome RunRank(int num_ranks, const std::function<void(MpiTestWorld&)>& body, const MpiOptions& options) {
  const int rank = environment->rank();
  Outcome outcome;
  const std::shared_ptr<MpiHub> hub = environment->NewHub(num_ranks, options);
  const auto fail = [&](absl::StatusCode code, const std::string& message) {
    SetOutcome(outcome, code, message);
    hub->AbortAll(message);
  };
  {
    MpiTestWorld world(rank, num_ranks, hub);
    try {
      body(world);
    } catch (const Error& error) {
      fail(error.code(), absl::StrCat("rank ", rank, ": ", error.message()));
    } catch (const std::exception& error) {
      fail(absl::StatusCode::kUnknown, absl::StrCat("rank ", rank, ": ", error.what()));
    }
    world.FinishWork();
  }
  hub->FinishRank();
  if (!hub->AwaitPeers(std::chrono::seconds(60))) {
    SetOutcome(outcome, absl::StatusCode::kInternal,
               absl::StrCat("rank ", rank, ": its peers have not ended"));
  }
  return outcome;
}

// Every process's `mine`. Processes that wait here leave the cores to the others.
std::vector<Outcome> GatherOutcomes(const Outcome& mine) {
  std::vector<Outcome> all(environment->size());
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallgather(&mine, sizeof(mine), MPI_BYTE, all.data(), sizeof(mine), MPI_BYTE, MPI_COMM_WORLD, &request);
  for (int i = 0;; ++i) {
    int done = 0;
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done) return all;
    if (i > 200000) {
      std::fprintf(stderr, "world rank %d: the others do not come to an end\n", environment->rank());
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
}

// What the processes but the first print: only what has failed.
class FailurePrinter final : public testing::EmptyTestEventListener {
 public:
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "world rank %d: %s:%d: %s\n", environment->rank(),
                 result.file_name() == nullptr ? "" : result.file_name(), result.line_number(),
                 result.message());
  }
};

int RunTests() {
  if (environment->rank() != 0) {
    testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter);
  }
  int failed = RUN_ALL_TESTS();
  MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  return failed;
}

// Rank 0 sleeps through its peer's failure; the peer must not wait for it for ever.
int Desert() {
  const std::shared_ptr<MpiHub> hub = environment->NewHub(2);
  if (environment->rank() == 1) {
    hub->AbortAll("the disk is full");
    return 1;
  }
  std::this_thread::sleep_for(std::chrono::seconds(60));
  return 0;
}

void* volatile lost = nullptr;

int Leak() {
#if defined(__SANITIZE_ADDRESS__)
  std::printf("leaks are looked for\n");
#endif
  if (environment->rank() == 1) lost = new char[4321];
  lost = nullptr;
  return 0;
}

}  // namespace

MpiEnvironment& TestEnvironment() { return *environment; }

MpiTestWorld::MpiTestWorld(int rank, int size, std::shared_ptr<MpiHub> hub)
    : World(rank, size, /*num_threads=*/1, MakeCpuAllocator(), /*tracer=*/nullptr), hub_(std::move(hub)) {}

std::shared_ptr<Communicator> MpiTestWorld::MakeGroup(const std::string& name,
                                                      const std::vector<int>& ranks) {
  std::shared_ptr<Communicator> group = MakeMpiCommunicator(hub_, name, ranks, &ledger(), &workers());
  group->set_timeout(std::chrono::minutes(1));
  return group;
}

void RunMpi(int num_ranks, const std::function<void(MpiTestWorld&)>& body, const MpiOptions& options) {
  Outcome mine;
  if (environment->rank() < num_ranks) mine = RunRank(num_ranks, body, options);
  const Outcome* first = nullptr;
  const std::vector<Outcome> all = GatherOutcomes(mine);
  for (const Outcome& outcome : all) {
    if (first == nullptr || outcome.failed_at < first->failed_at) first = &outcome;
  }
  if (first->code != 0) throw Error(static_cast<absl::StatusCode>(first->code), first->message);
}

}  // namespace weft

int main(int argc, char** argv) {
  weft::MpiEnvironment environment;
  weft::environment = &environment;
  testing::InitGoogleTest(&argc, argv);
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "desert") return weft::Desert();
  return what == "leak" ? weft::Leak() : weft::RunTests();
}

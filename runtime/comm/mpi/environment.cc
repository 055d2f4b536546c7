#include "runtime/comm/mpi/environment.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/error.h"
#include "runtime/comm/mpi/check.h"

namespace weft {
namespace {

// How long a process whose group has failed waits for the others to end, and for what they said at the end of a hub.
constexpr std::chrono::seconds kEnding{5};
constexpr int kHubTag = 1;

bool Done(MPI_Request& request) {
  int done = 0;
  CheckMpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
  return done != 0;
}

}  // namespace

MpiEnvironment::MpiEnvironment() {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized) {
    Throw(absl::StatusCode::kFailedPrecondition,
          "MPI has been initialised in this process before, and can be once");
  }
  int granted = MPI_THREAD_SINGLE;
  CheckMpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &granted), "MPI_Init_thread");
  if (granted < MPI_THREAD_MULTIPLE) {
    MPI_Finalize();
    Throw(absl::StatusCode::kFailedPrecondition, "this MPI grants thread level ", granted,
          ", not MPI_THREAD_MULTIPLE (", MPI_THREAD_MULTIPLE,
          "), which asynchronous collectives need: build or configure it with threads");
  }
  CheckMpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  CheckMpi(MPI_Comm_dup(MPI_COMM_WORLD, &world_), "MPI_Comm_dup");
  CheckMpi(MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  CheckMpi(MPI_Comm_rank(world_, &rank_), "MPI_Comm_rank");
  CheckMpi(MPI_Comm_size(world_, &size_), "MPI_Comm_size");
  MPI_Comm here = MPI_COMM_NULL;
  CheckMpi(MPI_Comm_split_type(world_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &here),
           "MPI_Comm_split_type");
  CheckMpi(MPI_Comm_rank(here, &local_rank_), "MPI_Comm_rank");
  CheckMpi(MPI_Comm_size(here, &local_size_), "MPI_Comm_size");
  CheckMpi(MPI_Comm_free(&here), "MPI_Comm_free");
}

// By way of a barrier that is polled: MPI_Finalize waits in the library, for ever and at full speed.
MpiEnvironment::~MpiEnvironment() {
  for (const std::weak_ptr<MpiTransport>& made : transports_) {
    if (const std::shared_ptr<MpiTransport> transport = made.lock()) transport->Close();
  }
  const auto begin = std::chrono::steady_clock::now();
  MPI_Request barrier = MPI_REQUEST_NULL;
  int done = 0;
  bool in_order = quiet_ && MPI_Ibarrier(world_, &barrier) == MPI_SUCCESS;
  while (in_order && !done) {
    const std::string failure = leftovers_->failure();
    if (MPI_Test(&barrier, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) in_order = false;
    if (!failure.empty() && std::chrono::steady_clock::now() - begin > kEnding) break;
    if (!done) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const std::vector<std::string> pending = leftovers_->Pending();
  if (!done || !pending.empty()) {
    const std::string failure = leftovers_->failure();
    std::fprintf(stderr, "weft: world rank %d ends the MPI job: %s (%s)\n", rank_,
                 failure.empty() ? "a collective of all processes failed" : failure.c_str(),
                 done ? absl::StrCat("not ended: ", absl::StrJoin(pending, "; ")).c_str()
                      : "other processes have not ended");
    std::fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Comm_free(&world_);
  MPI_Finalize();
}

void MpiEnvironment::Await(MPI_Request& request, std::chrono::milliseconds timeout, const char* what) {
  const auto begin = std::chrono::steady_clock::now();
  while (!Done(request)) {
    const auto waited = std::chrono::steady_clock::now() - begin;
    if (waited > timeout) {
      quiet_ = false;
      Throw(absl::StatusCode::kDeadlineExceeded, "MPI job of ", size_, " processes, ", what, ": world rank ",
            rank_, " waited ", timeout.count(), " ms; not all have arrived");
    }
    if (waited < std::chrono::milliseconds(1)) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
}

std::string MpiEnvironment::Broadcast(const std::string& bytes, std::chrono::milliseconds timeout) {
  // Where MPI may still read and write after a failure.
  auto size = std::make_shared<int64_t>(static_cast<int64_t>(bytes.size()));
  auto text = std::make_shared<std::string>(bytes);
  MPI_Request request = MPI_REQUEST_NULL;
  const auto keep_until_done = [&](auto memory) {
    try {
      Await(request, timeout, "broadcast");
    } catch (const Error&) {
      leftovers_->RecordFailure("a broadcast from world rank 0 came to no end");
      leftovers_->Keep(std::make_unique<MpiKept<decltype(memory)>>(std::move(memory)));
      throw;
    }
  };
  CheckMpi(MPI_Ibcast(size.get(), 1, MPI_INT64_T, 0, world_, &request), "MPI_Ibcast");
  keep_until_done(size);
  WEFT_REQUIRE(*size <= std::numeric_limits<int>::max(), "broadcast of ", *size, " bytes: too many");
  text->resize(*size);
  CheckMpi(MPI_Ibcast(text->data(), static_cast<int>(*size), MPI_BYTE, 0, world_, &request), "MPI_Ibcast");
  keep_until_done(text);
  return *text;
}

std::shared_ptr<MpiHub> MpiEnvironment::NewHub(int num_ranks, const MpiOptions& options) {
  WEFT_REQUIRE(num_ranks > rank_ && num_ranks <= size_, "a hub of ", num_ranks, " ranks, made by rank ",
               rank_, " of an MPI job of ", size_, ": the ranks are the first ones, this one among them");
  if (last_hub_ != nullptr) {
    // Here and not where a world ends: MPI moves what a rank has said while that rank calls it, as all do now. Before the new
    // communicators, so that those take the numbers of the old.
    last_hub_->AwaitPeers(kEnding);
    last_hub_ = nullptr;
  }
  std::vector<int> ranks(num_ranks);
  std::iota(ranks.begin(), ranks.end(), 0);
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group members = MPI_GROUP_NULL;
  MPI_Comm parent = MPI_COMM_NULL;
  CheckMpi(MPI_Comm_group(world_, &all), "MPI_Comm_group");
  CheckMpi(MPI_Group_incl(all, num_ranks, ranks.data(), &members), "MPI_Group_incl");
  CheckMpi(MPI_Comm_create_group(world_, members, kHubTag, &parent), "MPI_Comm_create_group");
  MPI_Group_free(&members);
  MPI_Group_free(&all);
  CheckMpi(MPI_Comm_set_errhandler(parent, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  const bool spin = local_size_ <= static_cast<int>(std::thread::hardware_concurrency());
  auto transport = std::make_shared<MpiTransport>(parent, spin, options, leftovers_);
  std::erase_if(transports_, [](const std::weak_ptr<MpiTransport>& other) { return other.expired(); });
  transports_.push_back(transport);
  last_hub_ = std::make_shared<MpiHub>(std::move(transport));
  return last_hub_;
}

}  // namespace weft

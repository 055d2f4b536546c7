#include "runtime/launch/world.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/error.h"
#include "runtime/tensor/tensor.h"

namespace weft {

World::World(int rank, int size, int local_rank, int num_threads, const WorldOptions& options)
    : World(
          rank, size, num_threads,
          MakeAllocator({options.device, local_rank % CountDevices(options.device)}, options.device_options),
          options.tracer) {
  WEFT_REQUIRE(options.comm_timeout.count() > 0, "WorldOptions::comm_timeout is above 0, got ",
               options.comm_timeout.count(), " ms");
  device_options_ = options.device_options;
  if (!options.check_issue_order) return;
  issue_log_ = std::make_unique<IssueLog>();
  flight_recorder_->set_issue_log(issue_log_.get());
}

World::World(int rank, int size, int num_threads, std::shared_ptr<Allocator> allocator, Tracer* tracer)
    : rank_(rank),
      size_(size),
      pool_(std::make_unique<ThreadPool>(num_threads)),
      allocator_(std::move(allocator)),
      tracer_(tracer) {}

std::shared_ptr<Communicator> World::MakeGroupOn(Backend /*backend*/, const std::string& /*name*/,
                                                 const std::vector<int>& /*ranks*/) {
  return nullptr;
}

std::shared_ptr<Communicator> World::NewGroup(const std::string& name, const std::vector<int>& ranks,
                                              const GroupOptions& options) {
  const auto describe = [&] {
    return absl::StrCat("group '", name, "' of ranks [", absl::StrJoin(ranks, ", "), "]: ");
  };
  WEFT_REQUIRE(std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<int>()) == ranks.end(),
               describe(), "ranks must ascend, each once");
  WEFT_REQUIRE(std::binary_search(ranks.begin(), ranks.end(), rank()), describe(), "lacks the calling rank ",
               rank());
  WEFT_REQUIRE(ranks.front() >= 0 && ranks.back() < size(), describe(), "the world has ranks 0 to ",
               size() - 1);
  WEFT_REQUIRE(options.timeout.count() >= 0, describe(), "timeout is ", options.timeout.count(),
               " ms, expected at least 0, which is the world's");
  failure_.ThrowIfFailed();
  std::shared_ptr<Communicator> group =
      options.backend == Backend::kAuto ? MakeGroup(name, ranks) : MakeGroupOn(options.backend, name, ranks);
  WEFT_REQUIRE(
      group != nullptr, describe(), "backend ", BackendName(options.backend),
      ": the ranks of this world cannot have it beside their own: threads can have local, processes gloo");
  if (options.timeout.count() > 0) group->set_timeout(options.timeout);
  return AddGroup(std::move(group));
}

std::shared_ptr<Communicator> World::NewHostGroup(const std::string& name, const std::vector<int>& ranks) {
  if (allocator_->device().type != DeviceType::kCuda) return NewGroup(name, ranks);
  // Threads can have the first beside their own, processes the second.
  std::shared_ptr<Communicator> group = MakeGroupOn(Backend::kLocal, name, ranks);
  if (group == nullptr) group = MakeGroupOn(Backend::kGloo, name, ranks);
  if (group == nullptr) group = MakeGroup(name, ranks);
  return AddGroup(std::move(group));
}

std::shared_ptr<Communicator> World::AddGroup(std::shared_ptr<Communicator> group) {
  group->set_flight_recorder(flight_recorder_.get());
  {
    const std::lock_guard<std::mutex> lock(groups_mutex_);
    std::erase_if(groups_, [](const std::weak_ptr<Communicator>& other) { return other.expired(); });
    groups_.push_back(group);
  }
  failure_.ThrowIfFailed();  // FailGroups may just have missed it
  return group;
}

const std::shared_ptr<Allocator>& World::host_allocator() {
  if (host_allocator_ == nullptr) {
    host_allocator_ = MakeHostAllocator(allocator_->device().type, device_options_);
  }
  return host_allocator_;
}

Store& World::store() {
  Throw(absl::StatusCode::kUnimplemented, "World::store: the world of rank ", rank(),
        " has no store; those of RunRanks, RunWorld and World::FromEnv have one");
}

namespace {

// What every rank has, end to end, and where each one's ends.
std::vector<std::string> AllGatherBytes(Communicator& group, const std::string& bytes) {
  const std::shared_ptr<Allocator> allocator = MakeCpuAllocator();
  const int size = group.size();
  const Tensor lengths = Tensor::Empty(allocator, DType::kI64, {size});
  const Tensor length = Tensor::FromValues<int64_t>({1}, {static_cast<int64_t>(bytes.size())}, allocator);
  group.AllGather(length, lengths, std::vector<int64_t>(size, 1)).Wait();
  const std::vector<int64_t> counts = lengths.ToVector<int64_t>();
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const Tensor all = Tensor::Empty(allocator, DType::kU8, {total});
  const Tensor own = Tensor::FromValues<uint8_t>({static_cast<int64_t>(bytes.size())},
                                                 std::vector<uint8_t>(bytes.begin(), bytes.end()), allocator);
  group.AllGather(own, all, counts).Wait();
  const std::vector<uint8_t> gathered = all.ToVector<uint8_t>();
  std::vector<std::string> by_rank;
  auto begin = gathered.begin();
  for (const int64_t count : counts) {
    by_rank.emplace_back(begin, begin + count);
    begin += count;
  }
  return by_rank;
}

}  // namespace

void World::CompareIssueOrder() {
  if (issue_log_ == nullptr) return;
  flight_recorder_->set_issue_log(nullptr);  // not of this
  ++num_compared_;
  if (issue_group_ == nullptr) {
    std::vector<int> ranks(size());
    std::iota(ranks.begin(), ranks.end(), 0);
    issue_group_ = NewGroup("issue order", ranks);
  }
  const std::vector<uint64_t> own = issue_log_->HashesByPeer(size());
  const std::vector<std::string> all = AllGatherBytes(
      *issue_group_, std::string(reinterpret_cast<const char*>(own.data()), own.size() * sizeof(uint64_t)));
  const auto hash_of = [&](int rank, int peer) {
    return absl::string_view(all[rank]).substr(peer * sizeof(uint64_t), sizeof(uint64_t));
  };
  bool agree = true;
  for (int a = 0; a < size(); ++a) {
    for (int b = 0; b < a; ++b) agree &= hash_of(a, b) == hash_of(b, a);
  }
  std::optional<std::string> difference;
  if (!agree) {
    std::vector<std::vector<IssueLog::Entry>> by_rank;
    for (const std::string& bytes : AllGatherBytes(*issue_group_, issue_log_->Encode())) {
      by_rank.push_back(IssueLog::Decode(bytes));
    }
    difference = FirstDifference(by_rank);
  }
  issue_log_->Clear();
  flight_recorder_->set_issue_log(issue_log_.get());
  if (difference.has_value()) {
    Throw(absl::StatusCode::kFailedPrecondition, "check_issue_order, comparison ", num_compared_, ": ",
          *difference, ": every rank must issue its collectives in the same order");
  }
}

void World::FailGroups(absl::StatusCode code, const std::string& message) {
  failure_.Set(code, message);
  std::vector<std::weak_ptr<Communicator>> groups;
  {
    const std::lock_guard<std::mutex> lock(groups_mutex_);
    groups = groups_;
  }
  for (const std::weak_ptr<Communicator>& weak : groups) {
    if (const std::shared_ptr<Communicator> group = weak.lock()) group->Fail(code, message);
  }
}

}  // namespace weft

#include "runtime/launch/world.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/error.h"

namespace weft {

World::World(int rank, int size, int local_rank, int num_threads, const WorldOptions& options)
    : World(
          rank, size, num_threads,
          MakeAllocator({options.device, local_rank % CountDevices(options.device)}, options.device_options),
          options.tracer) {}

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
  group->set_flight_recorder(&flight_recorder_);
  {
    const std::lock_guard<std::mutex> lock(groups_mutex_);
    std::erase_if(groups_, [](const std::weak_ptr<Communicator>& other) { return other.expired(); });
    groups_.push_back(group);
  }
  failure_.ThrowIfFailed();  // FailGroups may just have missed it
  return group;
}

Store& World::store() {
  Throw(absl::StatusCode::kUnimplemented, "World::store: the world of rank ", rank(),
        " has no store; those of RunRanks, RunWorld and World::FromEnv have one");
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

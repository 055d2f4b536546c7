#include "dtensor/context/rank_state.h"

#include "dtensor/context/mesh_transfer_cache.h"
#include "runtime/comm/queued_communicator.h"
#include "runtime/comm/worker.h"

namespace weft {

constexpr int64_t kKeptTransfers = 1024;

absl::string_view PurposeName(Purpose purpose) {
  switch (purpose) {
    case Purpose::kActivation:
      return "activation";
    case Purpose::kParam:
      return "param";
    case Purpose::kGrad:
      return "grad";
    case Purpose::kLoss:
      return "loss";
    case Purpose::kNorm:
      return "norm";
    case Purpose::kMetric:
      return "metric";
  }
  return "?";
}

RankState::RankState(World& world)
    : world_(world),
      flight_recorder_(world.shared_flight_recorder()),
      mesh_transfers_(std::make_unique<MeshTransferCache>(kKeptTransfers)) {
  path_ids_[""] = 0;
  flight_recorder_->WatchPlace(&place_);
  for (Purpose purpose : kPurposes) {
    flight_recorder_->NamePurpose(static_cast<uint8_t>(purpose), std::string(PurposeName(purpose)));
  }
  if (Tracer* const tracer = world.tracer(); tracer != nullptr) {
    for (const Lane lane : kLanes) {
      tracer->NameLane(static_cast<int>(lane), lane == Lane::kInline ? "rank" : LaneName(lane));
    }
  }
}

RankState::~RankState() {
  flight_recorder_->ForgetPlace(&place_);
  for (const std::shared_ptr<Worker>& worker : lane_workers_) {
    if (worker != nullptr) worker->Close();
  }
}

Worker& RankState::LaneWorker(Lane lane) {
  std::shared_ptr<Worker>& worker = lane_workers_[static_cast<int>(lane)];
  if (worker == nullptr) worker = world_.StartWorker();
  return *worker;
}

int RankState::PathId(const std::string& path) {
  const auto [it, inserted] = path_ids_.try_emplace(path, static_cast<int>(paths_.size()));
  if (inserted) {
    paths_.push_back(path);
    world_.flight_recorder().NamePath(it->second, path);
  }
  return it->second;
}

void RankState::ResetCallNumbers() {
  call_numbers_.clear();
  draws_outside_ = 0;
}

RandomSnapshot RankState::random_snapshot() const {
  return {step_,         batch_offset_,  random_fold_, path_id(), module_training_,
          call_numbers_, draws_outside_, in_root_call_};
}

bool RankState::FirstWarning(std::string key) { return warned_.insert(std::move(key)).second; }

BatchOffsetGuard::BatchOffsetGuard(RankState& state, int64_t offset)
    : ScopedValue(state.batch_offset_, offset) {
  WEFT_REQUIRE(offset >= 0, "BatchOffsetGuard: expected an offset of at least 0, got ", offset);
}

AutocastGuard::AutocastGuard(RankState& state, std::optional<DType> dtype)
    : ScopedValue(state.autocast_, dtype) {
  WEFT_REQUIRE(!dtype || IsFloating(*dtype), "AutocastGuard: expected f16, bf16, f32 or f64, got ",
               DTypeName(*dtype));
}

RandomScope::RandomScope(RankState& state, RandomSnapshot snapshot)
    : state_(state), other_(std::move(snapshot)) {
  Swap();
}

RandomScope::~RandomScope() { Swap(); }

void RandomScope::Swap() noexcept {
  std::swap(state_.step_, other_.step);
  std::swap(state_.batch_offset_, other_.batch_offset);
  std::swap(state_.random_fold_, other_.fold);
  other_.path_id = state_.place_.path_id.exchange(other_.path_id);
  std::swap(state_.module_training_, other_.module_training);
  state_.call_numbers_.swap(other_.call_numbers);
  std::swap(state_.draws_outside_, other_.draws_outside);
  std::swap(state_.in_root_call_, other_.in_root_call);
}

Communicator& RankState::Group(const std::string& name, const std::vector<int>& ranks) {
  std::shared_ptr<Communicator>& group = groups_[{name, ranks}];
  if (group == nullptr) {
    group = world_.NewGroup(name, ranks);
    TakeTurns(*group, link_turns_, LanePriority(Lane::kInline));
  }
  return *group;
}

Communicator& RankState::HostGroup(const std::string& name, const std::vector<int>& ranks) {
  if (world_.allocator()->device().type != DeviceType::kCuda) return Group(name, ranks);
  std::shared_ptr<Communicator>& group = host_groups_[{name, ranks}];
  if (group == nullptr) {
    group = world_.NewHostGroup(name, ranks);
    TakeTurns(*group, link_turns_, LanePriority(Lane::kInline));
  }
  return *group;
}

}  // namespace weft

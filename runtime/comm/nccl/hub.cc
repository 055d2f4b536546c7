#include "runtime/comm/nccl/hub.h"

#include <algorithm>
#include <iostream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/clamp_timeout.h"
#include "runtime/base/error.h"
#include "runtime/comm/flight_recorder.h"
#include "runtime/comm/group_text.h"
#include "runtime/device/cuda/stream.h"

namespace weft {
namespace {

constexpr char kCalls[] = "nccl/calls";
// How long the end of the rank waits for peers to leave groups too.
constexpr std::chrono::seconds kLinger(1);

std::string FinishedKey(int world_rank) { return absl::StrCat("nccl/finished/", world_rank); }

NcclOptions WithTimeoutsOfAClock(NcclOptions options) {
  options.connect_timeout = ClampTimeout(options.connect_timeout);
  options.interval = ClampTimeout(options.interval);
  options.late_after = ClampTimeout(options.late_after);
  options.patience = ClampTimeout(options.patience);
  return options;
}

}  // namespace

NcclHub::NcclHub(std::shared_ptr<NcclApi> api, std::shared_ptr<Store> store, int world_rank,
                 std::shared_ptr<Allocator> allocator, NcclOptions options)
    : api_(std::move(api)),
      store_(std::move(store)),
      world_rank_(world_rank),
      allocator_(std::move(allocator)),
      options_(WithTimeoutsOfAClock(options)) {}

NcclHub::~NcclHub() { Finish(); }

std::string NcclHub::NextPrefix(const std::vector<int>& ranks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return absl::StrCat("nccl/", RankSetText(ranks), "/", num_groups_[ranks]++, "/");
}

void NcclHub::ThrowIfAborted() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (abort_reason_.has_value()) Throw(absl::StatusCode::kAborted, *abort_reason_);
}

void NcclHub::Add(const std::shared_ptr<Member>& group) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (abort_reason_.has_value()) Throw(absl::StatusCode::kAborted, *abort_reason_);
  std::erase_if(groups_, [](const std::weak_ptr<Member>& other) { return other.expired(); });
  groups_.push_back(group);
  if (!monitor_.joinable() && !stop_) monitor_ = std::thread([this] { Loop(); });
}

void NcclHub::Retire(std::shared_ptr<Member> group) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!stop_) {
      retired_.push_back(std::move(group));
      return;
    }
  }
  group->EndNow();
}

int64_t NcclHub::Call() {
  const int64_t call = store_->Add(kCalls, 1);
  Wake();
  return call;
}

void NcclHub::Wake() {
  const std::lock_guard<std::mutex> lock(mutex_);
  awake_ = true;
  wake_.notify_all();
}

bool NcclHub::HasFinished(int world_rank) { return store_->Check({FinishedKey(world_rank)}); }

void NcclHub::WarnOfRegistration(const std::string& group, const Error& error) {
  if (has_warned_.exchange(true)) return;
  std::cerr << absl::StrCat("weft: world rank ", world_rank_, ": group '", group, "': ", error.message(),
                            "; going on with memory that is not registered. NCCL wants that on all ranks "
                            "alike: run without WEFT_NCCL_REGISTER\n");
}

std::vector<std::shared_ptr<NcclHub::Member>> NcclHub::Members() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::shared_ptr<Member>> members;
  for (const std::weak_ptr<Member>& weak : groups_) {
    if (std::shared_ptr<Member> group = weak.lock()) members.push_back(std::move(group));
  }
  return members;
}

bool NcclHub::LeaveRetired() {
  const std::lock_guard<std::mutex> leave_lock(leave_mutex_);
  std::vector<std::shared_ptr<Member>> retired;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    retired.swap(retired_);
  }
  std::erase_if(retired, [](const std::shared_ptr<Member>& group) { return group->TryLeave(); });
  const std::lock_guard<std::mutex> lock(mutex_);
  retired_.insert(retired_.end(), retired.begin(), retired.end());
  return !retired_.empty();
}

void NcclHub::Loop() {
  try {
    SetCudaDevice(allocator_->device().index);  // otherwise its calls would make a context on GPU 0
  } catch (const Error&) {
    // The device has failed, which the groups find out.
  }
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait_for(lock, options_.interval, [this] { return stop_ || awake_; });
      if (stop_) return;
      awake_ = false;
    }
    const std::vector<std::shared_ptr<Member>> members = Members();
    if (members.empty()) continue;
    Round round;
    round.now_ns = FlightClock();
    try {
      const std::optional<std::string> held = store_->TryGet(kCalls);
      int64_t call = 0;
      if (held.has_value() && absl::SimpleAtoi(*held, &call) && call != answered_) {
        round.call = answered_ = call;
      }
    } catch (const Error&) {
      // A job whose store is gone ends by other means; what this rank sees alone it still sees.
    }
    for (const std::shared_ptr<Member>& member : members) member->Look(round);
    LeaveRetired();
  }
}

void NcclHub::AbortAll(const std::string& reason) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (abort_reason_.has_value()) return;
    abort_reason_ = reason;
  }
  for (const auto& member : Members()) member->AbortAll(reason);
}

void NcclHub::FinishWork() {
  for (const auto& member : Members()) {
    while (!member->idle()) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void NcclHub::Finish() noexcept {
  try {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stop_) return;
    }
    // The reasons before the consequence.
    const std::vector<std::shared_ptr<Member>> members = Members();
    for (const auto& group : members) group->Tell();
    for (const auto& group : members) group->TellLast();
    store_->Set(FinishedKey(world_rank_), "1");
  } catch (const std::exception&) {
    // Peers that wait for this rank find out by their timeouts.
  }
  const auto deadline = std::chrono::steady_clock::now() + kLinger;
  while (LeaveRetired() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    wake_.notify_all();
  }
  if (monitor_.joinable()) monitor_.join();
  std::vector<std::shared_ptr<Member>> retired;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    retired.swap(retired_);
  }
  const std::vector<std::shared_ptr<Member>> members = Members();
  retired.insert(retired.end(), members.begin(), members.end());
  for (const auto& group : retired) group->EndNow();
  for (const auto& group : retired) group->AwaitEnded();
}

}  // namespace weft

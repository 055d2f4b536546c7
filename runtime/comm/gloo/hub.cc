#include "runtime/comm/gloo/hub.h"

#include <signal.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gloo/transport/tcp/device.h"
#include "runtime/base/clamp_timeout.h"
#include "runtime/base/error.h"
#include "runtime/comm/group_text.h"

namespace weft {
namespace {

// How long a wait for the store goes on before it looks whether it is still wanted.
constexpr std::chrono::milliseconds kSlice(100);
// How long the connections of a group are kept that this rank has left, and how long the end of the rank
// waits for what is on its way.
constexpr std::chrono::seconds kRetirement(5);
constexpr std::chrono::seconds kLinger(1);

// Another boot is another machine, or all that was shared is gone.
std::string ThisBoot() {
  std::string identity;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> identity;
  return identity;
}

// Gloo writes to connections whose peer may be gone, from the caller's thread and its own, and does not ask
// the system to spare it the signal, which would end this process. A program that has an opinion keeps it.
void IgnoreBrokenPipes() {
  struct sigaction action = {};
  if (sigaction(SIGPIPE, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) return;
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
}

GlooOptions WithTimeoutsOfAClock(GlooOptions options) {
  options.connect_timeout = ClampTimeout(options.connect_timeout);
  options.reason_takes = ClampTimeout(options.reason_takes);
  return options;
}

}  // namespace

GlooHub::GlooHub(std::shared_ptr<Store> store, int world_rank, int world_size, GlooOptions options)
    : store_(std::move(store)),
      world_rank_(world_rank),
      world_size_(world_size),
      options_(WithTimeoutsOfAClock(std::move(options))),
      host_identity_(options_.host_identity.empty() ? ThisBoot() : options_.host_identity) {}

GlooHub::~GlooHub() { Finish(); }

std::string GlooHub::NextPrefix(const std::vector<int>& ranks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return absl::StrCat("groups/", RankSetText(ranks), "/", num_groups_[ranks]++, "/");
}

void GlooHub::ThrowIfAborted() const {
  if (abort_reason_.has_value()) Throw(absl::StatusCode::kAborted, *abort_reason_);
}

std::string GlooHub::Get(const std::string& key, std::chrono::steady_clock::time_point deadline) {
  for (;;) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ThrowIfAborted();
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    try {
      return store_->Get(key, std::clamp(left, std::chrono::milliseconds(0), kSlice));
    } catch (const Error& error) {
      if (error.code() != absl::StatusCode::kDeadlineExceeded || left <= kSlice) throw;
    }
  }
}

std::shared_ptr<gloo::transport::Device> GlooHub::Device() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (device_ == nullptr) {
    IgnoreBrokenPipes();
    gloo::transport::tcp::attr attributes;
    attributes.hostname = options_.address;
    attributes.iface = options_.interface;
    try {
      event_thread_ = std::make_unique<GlooEventThread>(
          [&] { device_ = gloo::transport::tcp::CreateDevice(attributes); });
    } catch (const std::exception& error) {
      Throw(absl::StatusCode::kFailedPrecondition, "no TCP device for address '", options_.address,
            "', interface '", options_.interface, "': ", error.what());
    }
  }
  return device_;
}

void GlooHub::Add(const std::shared_ptr<Member>& group) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ThrowIfAborted();
  std::erase_if(groups_, [](const std::weak_ptr<Member>& other) { return other.expired(); });
  groups_.push_back(group);
}

void GlooHub::Retire(std::shared_ptr<TcpMesh> mesh, std::shared_ptr<const void> posted) {
  std::vector<Retired> expired;  // closed without the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  for (Retired& retired : retired_) {
    if (now - retired.since > kRetirement) expired.push_back(std::move(retired));
  }
  std::erase_if(retired_, [](const Retired& retired) { return retired.mesh == nullptr; });
  retired_.push_back({std::move(mesh), std::move(posted), now});
}

void GlooHub::AbortAll(const std::string& reason) {
  std::vector<std::shared_ptr<Member>> groups;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (abort_reason_.has_value()) return;
    abort_reason_ = reason;
    for (const std::weak_ptr<Member>& weak : groups_) {
      if (std::shared_ptr<Member> group = weak.lock()) groups.push_back(std::move(group));
    }
  }
  for (const auto& group : groups) group->Abort(reason);
}

void GlooHub::Finish() {
  std::vector<std::shared_ptr<Member>> groups;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const std::weak_ptr<Member>& weak : groups_) {
      if (std::shared_ptr<Member> group = weak.lock()) groups.push_back(std::move(group));
    }
    groups_.clear();
  }
  for (const auto& group : groups) group->Depart();
  std::vector<Retired> retired;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    retired.swap(retired_);
  }
  const auto deadline = std::chrono::steady_clock::now() + kLinger;
  for (const Retired& left : retired) left.mesh->AwaitFarewells(deadline);
}

}  // namespace weft

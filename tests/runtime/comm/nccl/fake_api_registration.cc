// Memory that communicators of the fake know.

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/comm/nccl/fake_state.h"

namespace weft {

// The handle is there when the call is through, as NCCL may do it.
NcclResult FakeNccl::CommRegister(NcclHandle handle, void* data, int64_t num_bytes, void** registration) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = comms_.find(Find(handle));
  if (found == comms_.end()) return NcclResult::kInvalidArgument;
  Comm& comm = *found->second;
  NcclResult failure;
  if (Fails("ncclCommRegister", comm.rank, &failure)) return failure;
  if (comm.polls_left > 0 || comm.when_through != nullptr || num_bytes <= 0) return NcclResult::kInvalidUsage;
  for (const auto& [other, memory] : comm.registrations) {
    if (memory.Holds(data)) misuses_.push_back("registered twice");
  }
  ++num_registrations_;
  comm.polls_left = kPolls;
  comm.when_through = [this, &comm, data, num_bytes, registration] {
    *registration = reinterpret_cast<void*>(++next_registration_);
    comm.registrations[*registration] = {static_cast<const char*>(data), num_bytes};
  };
  return NcclResult::kInProgress;
}

NcclResult FakeNccl::CommDeregister(NcclHandle handle, void* registration) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = comms_.find(Find(handle));
  if (found == comms_.end()) return NcclResult::kInvalidArgument;
  Comm& comm = *found->second;
  const auto registered = comm.registrations.find(registration);
  if (registered == comm.registrations.end()) {
    misuses_.push_back("taken back from a communicator that it was not registered with");
    return NcclResult::kInvalidUsage;
  }
  if (comm.polls_left > 0 || comm.when_through != nullptr) {
    misuses_.push_back("taken back before the call before it was through");
  }
  for (const std::weak_ptr<Operation>& weak : comm.operations) {
    const std::shared_ptr<Operation> operation = weak.lock();
    if (operation == nullptr || operation->over) continue;
    for (const Operation::Part& part : operation->parts) {
      const Memory& memory = registered->second;
      if (memory.Holds(part.call.input) || memory.Holds(part.call.output)) {
        misuses_.push_back("taken back while an operation uses it");
      }
    }
  }
  ++num_deregistrations_;
  comm.polls_left = kPolls;
  comm.when_through = [&comm, registration] { comm.registrations.erase(registration); };
  return NcclResult::kInProgress;
}

bool FakeNccl::IsRegistered(const Comm& comm, const Call& call) {
  int num_all = 0;
  int num_registered = 0;
  for (const void* const data : {call.input, static_cast<const void*>(call.output)}) {
    if (data == nullptr) continue;
    ++num_all;
    num_registered += std::any_of(comm.registrations.begin(), comm.registrations.end(),
                                  [&](const auto& registration) { return registration.second.Holds(data); });
  }
  if (num_registered > 0 && num_registered < num_all)
    misuses_.push_back("a part of a call's memory registered");
  return num_registered == num_all;
}

void FakeNccl::NoteFreed(const void* data) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [comm, owned] : comms_) {
    for (const auto& [registration, memory] : comm->registrations) {
      if (memory.Holds(data)) misuses_.push_back("given back to the device while it is registered");
    }
  }
}

int64_t FakeNccl::NumRegistrations() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_registrations_;
}

int64_t FakeNccl::NumDeregistrations() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_deregistrations_;
}

std::vector<std::string> FakeNccl::Misuses() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return misuses_;
}

}  // namespace weft

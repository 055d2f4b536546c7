#include "tests/runtime/comm/nccl/fake_api.h"

#include <algorithm>
#include <cstring>

#include "tests/cuda_emulator/emulator.h"
#include "tests/runtime/comm/nccl/fake_state.h"
#include "tests/runtime/comm/nccl/ring_reduction.h"

namespace weft {
namespace {

constexpr char kMixed[] = "memory registered on some members of a call alone";

bool IsMessage(FakeNccl::Kind kind) { return kind == FakeNccl::Kind::kSend || kind == FakeNccl::Kind::kRecv; }

bool Agree(const FakeNccl::Call& a, const FakeNccl::Call& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.op == b.op && a.peer == b.peer;
}

// Writes the results of a collective that all members have come to.
void Perform(const std::vector<const FakeNccl::Call*>& calls) {
  const FakeNccl::Call& first = *calls[0];
  const int n = static_cast<int>(calls.size());
  const size_t bytes = static_cast<size_t>(first.count * NcclTypeSize(first.type));
  const auto inputs = [&](size_t offset) {
    std::vector<const void*> all;
    for (const FakeNccl::Call* call : calls) all.push_back(static_cast<const char*>(call->input) + offset);
    return all;
  };
  switch (first.kind) {
    case FakeNccl::Kind::kReduce:
    case FakeNccl::Kind::kAllReduce: {
      const std::vector<char> result = ReduceAroundRing(first.type, first.op, inputs(0), first.count);
      for (const FakeNccl::Call* call : calls) {
        const bool receives = first.kind == FakeNccl::Kind::kAllReduce || call == calls[first.peer];
        if (receives) std::memcpy(call->output, result.data(), bytes);
      }
      return;
    }
    case FakeNccl::Kind::kReduceScatter: {
      for (int r = 0; r < n; ++r) {
        const std::vector<char> result =
            ReduceAroundRing(first.type, first.op, inputs(r * bytes), first.count);
        std::memcpy(calls[r]->output, result.data(), bytes);
      }
      return;
    }
    case FakeNccl::Kind::kBroadcast:
      for (const FakeNccl::Call* call : calls) std::memcpy(call->output, calls[first.peer]->input, bytes);
      return;
    case FakeNccl::Kind::kAllGather:
      for (const FakeNccl::Call* call : calls) {
        for (int r = 0; r < n; ++r) {
          std::memcpy(static_cast<char*>(call->output) + r * bytes, calls[r]->input, bytes);
        }
      }
      return;
    case FakeNccl::Kind::kSend:
    case FakeNccl::Kind::kRecv:
      return;
  }
}

}  // namespace

bool FakeNccl::Fails(const std::string& call, int rank, NcclResult* result) {
  const auto found = failures_.find({call, rank});
  if (found == failures_.end()) return false;
  *result = found->second;
  failures_.erase(found);
  return true;
}

NcclResult FakeNccl::GetUniqueId(NcclId* id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  NcclResult failure;
  if (Fails("ncclGetUniqueId", 0, &failure)) return failure;
  const std::string text = "fake " + std::to_string(next_id_++);
  std::copy(text.begin(), text.end(), id->bytes.begin());
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::CommInitRank(NcclHandle* handle, int size, const NcclId& id, int rank,
                                  const std::string&) {
  int device = 0;
  cudaGetDevice(&device);
  const std::lock_guard<std::mutex> lock(mutex_);
  NcclResult failure;
  if (Fails("ncclCommInitRankConfig", rank, &failure)) return failure;
  std::shared_ptr<Clique>& clique = cliques_[std::string(id.bytes.begin(), id.bytes.end())];
  if (clique == nullptr) clique = std::make_shared<Clique>();
  clique->size = size;
  for (const auto& [other, used] : clique->devices) {
    if (used == device) return NcclResult::kInvalidUsage;
  }
  clique->devices[rank] = device;
  auto comm = std::make_shared<Comm>();
  comm->clique = clique;
  comm->rank = rank;
  clique->members[rank] = comm;
  comms_[comm.get()] = comm;
  *handle = comm.get();
  return NcclResult::kInProgress;
}

NcclResult FakeNccl::CommGetAsyncError(NcclHandle handle, NcclResult* error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Comm& comm = *Find(handle);
  if (comms_.count(&comm) == 0) return NcclResult::kInvalidArgument;
  *error = NcclResult::kSuccess;
  if (const auto found = async_errors_.find(comm.rank); found != async_errors_.end()) *error = found->second;
  if (comm.error != NcclResult::kSuccess) *error = comm.error;
  if (*error != NcclResult::kSuccess) return NcclResult::kSuccess;
  bool waits = !comm.connected() || held_.count(comm.rank) > 0;
  if (comm.finalized) {
    for (const auto& [rank, member] : comm.clique->members) {
      const std::shared_ptr<Comm> other = member.lock();
      waits |= other != nullptr && !other->finalized && !other->aborted;
    }
  }
  for (const std::pair<int, int>& direction : comm.directions) {
    const Clique::Connection& connection = comm.clique->connections[direction];
    waits |= !connection.sender || !connection.receiver;
  }
  if (waits || comm.polls_left-- > 0) {
    *error = NcclResult::kInProgress;
  } else if (comm.when_through != nullptr) {
    std::exchange(comm.when_through, nullptr)();
  }
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::CommFinalize(NcclHandle handle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Comm& comm = *Find(handle);
  NcclResult failure;
  if (Fails("ncclCommFinalize", comm.rank, &failure)) return failure;
  comm.finalized = true;
  comm.polls_left = kPolls;
  return NcclResult::kInProgress;
}

NcclResult FakeNccl::CommDestroy(NcclHandle handle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = comms_.find(Find(handle));
  if (found == comms_.end()) return NcclResult::kInvalidArgument;
  if (!found->second->registrations.empty()) misuses_.push_back("destroyed with memory registered");
  comms_.erase(found);
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::CommAbort(NcclHandle handle) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    num_held_aborts_ += aborts_are_held_;
    let_go_.wait(lock, [this] { return !aborts_are_held_; });
    const auto found = comms_.find(Find(handle));
    if (found == comms_.end()) return NcclResult::kInvalidArgument;
    found->second->aborted = true;
    found->second->registrations.clear();  // as NCCL does
    found->second->clique->broken = true;
    for (const auto& [rank, member] : found->second->clique->members) {
      const std::shared_ptr<Comm> other = member.lock();
      if (aborts_are_heard_ && other != nullptr && other != found->second) {
        other->error = NcclResult::kRemoteError;
      }
    }
    comms_.erase(found);
    ++num_aborted_;
  }
  cuda_emulator::NotifyReady();
  return NcclResult::kSuccess;
}

std::string FakeNccl::GetErrorString(NcclResult result) {
  switch (result) {
    case NcclResult::kSystemError:
      return "unhandled system error";
    case NcclResult::kInvalidUsage:
      return "invalid usage";
    case NcclResult::kRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "error " + std::to_string(static_cast<int>(result));
  }
}

std::string FakeNccl::GetLastError(NcclHandle) { return "the fake's last words"; }

NcclResult FakeNccl::Add(const char* name, const Call& call, NcclHandle handle, cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto comm = comms_.find(Find(handle));
  if (comm == comms_.end()) return NcclResult::kInvalidArgument;
  NcclResult failure;
  if (Fails(name, comm->second->rank, &failure)) return failure;
  Group& group = groups_[std::this_thread::get_id()];
  const bool is_ready =
      comm->second->connected() && comm->second->polls_left <= 0 && comm->second->when_through == nullptr;
  // Weft groups all it calls, and a group is of one communicator and stream.
  if (!is_ready || group.depth == 0 || call.count <= 0 ||
      (group.comm != nullptr && group.comm != comm->first)) {
    return NcclResult::kInvalidUsage;
  }
  group.comm = comm->first;
  group.stream = stream;
  group.calls.push_back(call);
  return NcclResult::kInProgress;
}

NcclResult FakeNccl::GroupStart() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++groups_[std::this_thread::get_id()].depth;
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::GroupEnd() {
  auto operation = std::make_shared<Operation>();
  cudaStream_t stream = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Group& group = groups_[std::this_thread::get_id()];
    if (group.depth == 0) return NcclResult::kInvalidUsage;
    if (--group.depth > 0) return NcclResult::kSuccess;
    const Group ended = std::exchange(group, Group());
    if (ended.calls.empty()) return NcclResult::kSuccess;
    const auto comm = comms_.find(ended.comm);
    if (comm == comms_.end()) return NcclResult::kInvalidArgument;
    NcclResult failure;
    if (Fails("ncclGroupEnd", comm->second->rank, &failure)) return failure;
    operation->comm = comm->second;
    stream = ended.stream;
    Comm& mine = *comm->second;
    mine.polls_left = kPolls;
    mine.directions.clear();
    for (const Call& call : ended.calls) {
      uint64_t number = 0;
      if (IsMessage(call.kind)) {
        const bool sends = call.kind == Kind::kSend;
        mine.directions.push_back(sends ? std::pair(mine.rank, call.peer) : std::pair(call.peer, mine.rank));
        Clique::Connection& connection = mine.clique->connections[mine.directions.back()];
        (sends ? connection.sender : connection.receiver) = true;
      }
      if (call.kind == Kind::kSend) {
        number = mine.num_sends[{mine.rank, call.peer}]++;
      } else if (call.kind == Kind::kRecv) {
        number = mine.num_receives[{call.peer, mine.rank}]++;
      } else {
        number = mine.num_collectives++;
      }
      operation->parts.push_back({call, number, IsRegistered(mine, call)});
    }
    std::erase_if(mine.operations, [](const std::weak_ptr<Operation>& other) { return other.expired(); });
    mine.operations.push_back(operation);
  }
  const cudaError_t error =
      cuda_emulator::IssueWhenReady(stream, [this, operation] { return TryFinish(*operation); });
  return error == cudaSuccess ? NcclResult::kInProgress : NcclResult::kUnhandledCudaError;
}

bool FakeNccl::TryFinish(Operation& operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Comm& comm = *operation.comm;
  if (comm.aborted) return operation.over = true;
  Clique& clique = *comm.clique;
  bool all_done = true;
  for (const Operation::Part& part : operation.parts) {
    if (!IsMessage(part.call.kind)) {
      Clique::Collective& collective = clique.collectives[part.number];
      collective.posted.try_emplace(comm.rank, part.call, part.registered, comm.rank, clique.size);
      if (!collective.done && !clique.broken && static_cast<int>(collective.posted.size()) == clique.size) {
        std::vector<const Call*> calls;
        bool agree = true;
        for (const auto& [rank, member] : collective.posted) {
          agree = agree && Agree(collective.posted.begin()->second.call, member.call);
          if (member.registered != part.registered) misuses_.push_back(kMixed);
          calls.push_back(&member.call);
        }
        if (agree) {
          Perform(calls);
          collective.done = true;
        }
      }
      all_done = all_done && collective.done;
      continue;
    }
    const bool sends = part.call.kind == Kind::kSend;
    const std::pair<int, int> ends =
        sends ? std::pair(comm.rank, part.call.peer) : std::pair(part.call.peer, comm.rank);
    Clique::Posted& mine = (sends ? clique.sends : clique.receives)[ends]
                               .try_emplace(part.number, part.call, part.registered, comm.rank, clique.size)
                               .first->second;
    auto& others = (sends ? clique.receives : clique.sends)[ends];
    const auto other = others.find(part.number);
    if (!mine.done && !clique.broken && other != others.end() &&
        other->second.call.count == part.call.count) {
      const Call& from = sends ? mine.call : other->second.call;
      const Call& to = sends ? other->second.call : mine.call;
      std::memcpy(to.output, from.input, static_cast<size_t>(from.count * NcclTypeSize(from.type)));
      if (mine.registered != other->second.registered) misuses_.push_back(kMixed);
      mine.done = other->second.done = true;
    }
    all_done = all_done && mine.done;
  }
  return operation.over = all_done;
}

}  // namespace weft

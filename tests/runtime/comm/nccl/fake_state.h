// What the fake keeps of communicators and of what they were asked for.

#ifndef WEFT_TESTS_RUNTIME_COMM_NCCL_FAKE_STATE_H_
#define WEFT_TESTS_RUNTIME_COMM_NCCL_FAKE_STATE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tests/runtime/comm/nccl/fake_api.h"
#include "tests/runtime/comm/nccl/ring_reduction.h"

namespace weft {

// How often a call's progress is asked for before it is through.
inline constexpr int kPolls = 2;

// What a communicator's members share.
struct FakeNccl::Clique {
  // What a member has come to, with its input as it was then: the earliest that NCCL may read it.
  struct Posted {
    Posted(const Call& posted, bool registered, int rank, int size)
        : call(posted), registered(registered), input(InputBytes(posted, rank, size)) {
      std::copy_n(static_cast<const char*>(posted.input), input.size(), input.begin());
      call.input = input.data();
    }
    // The bytes that `rank` of `size` puts into it.
    static size_t InputBytes(const Call& call, int rank, int size) {
      if (call.kind == Kind::kRecv || (call.kind == Kind::kBroadcast && rank != call.peer)) return 0;
      const int pieces = call.kind == Kind::kReduceScatter ? size : 1;
      return static_cast<size_t>(call.count * NcclTypeSize(call.type) * pieces);
    }

    Call call;
    bool registered = false;  // its memory
    std::vector<char> input;
    bool done = false;  // of a message
  };
  struct Collective {
    std::map<int, Posted> posted;
    bool done = false;
  };
  using Packets = std::map<std::pair<int, int>, std::map<uint64_t, Posted>>;  // by ends, numbered

  // Which ends of the messages of a direction, from one member to another, have come to one.
  struct Connection {
    bool sender = false;
    bool receiver = false;
  };

  int size = 0;
  std::map<std::pair<int, int>, Connection> connections;
  bool broken = false;  // a member has aborted: its buffers may be gone
  std::map<int, std::weak_ptr<Comm>> members;
  std::map<int, int> devices;
  std::map<uint64_t, Collective> collectives;
  Packets sends;
  Packets receives;
};

struct FakeNccl::Comm {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  int polls_left = kPolls;
  std::vector<std::pair<int, int>> directions;  // of the messages that it was last asked for
  bool aborted = false;
  bool finalized = false;
  NcclResult error = NcclResult::kSuccess;
  uint64_t num_collectives = 0;
  std::map<std::pair<int, int>, uint64_t> num_sends;
  std::map<std::pair<int, int>, uint64_t> num_receives;
  std::map<void*, Memory> registrations;  // by their handles
  std::function<void()> when_through;     // with what it was last asked for
  std::vector<std::weak_ptr<Operation>> operations;

  bool connected() const { return static_cast<int>(clique->members.size()) == clique->size; }
};

struct FakeNccl::Operation {
  struct Part {
    Call call;
    uint64_t number = 0;
    bool registered = false;  // its memory
  };
  std::shared_ptr<Comm> comm;
  std::vector<Part> parts;
  bool over = false;
};

}  // namespace weft

#endif  // WEFT_TESTS_RUNTIME_COMM_NCCL_FAKE_STATE_H_

#ifndef WEFT_RUNTIME_COMM_GLOO_MEETING_H_
#define WEFT_RUNTIME_COMM_GLOO_MEETING_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/gloo/hub.h"
#include "runtime/comm/gloo/member_memory.h"
#include "runtime/comm/gloo/tcp_mesh.h"

namespace weft {

// How the members of a new group have found that they reach each other.
struct Meeting {
  std::string prefix;       // their keys in the store
  std::vector<int> hosted;  // the group ranks that may share memory with this one, itself too; ascending
  std::unique_ptr<MemberMemory> own;                 // null: none is shared
  std::vector<std::unique_ptr<MemberMemory>> peers;  // by group rank; null: not by memory
  std::shared_ptr<TcpMesh> mesh;                     // null: every pair of the group shares memory
  std::string why_not_shared;                        // if a peer on this host is reached by TCP
};

// Meets the other members of this rank's next group of `ranks`: all of them call it, and it waits for them.
// Pairs on one host share memory if both can open the other's; whether anybody needs TCP is the same verdict
// everywhere.
//
// Cost:   three rounds through the store at most, and Gloo's.
// Errors: DeadlineExceeded, naming the world ranks that have not come; InvalidArgument if members gave it
//         other names; Aborted by AbortAll; FailedPrecondition if memory is demanded and cannot be had.
Meeting Meet(GlooHub& hub, const std::string& name, const std::vector<int>& ranks, int rank);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_MEETING_H_

#ifndef WEFT_RUNTIME_COMM_EDGES_H_
#define WEFT_RUNTIME_COMM_EDGES_H_

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "runtime/comm/communicator.h"

namespace weft {

// Messages that go one way between two members of a group, with the tags 0 to num_tags - 1.
struct Edge {
  int from = 0;  // group ranks
  int to = 0;
  int num_tags = 1;

  bool operator==(const Edge&) const = default;
};

// Point to point in a group, a queue of its own for each directed edge and tag: a communicator of its two ends.
//
// In one group, messages go in the order of their issue, both ways, and with the collectives: two ranks that both
// issue a receive before a send wait for each other for ever. Here nothing waits for anything of another edge,
// direction or tag. A receive may be issued long before its send, several messages may be outstanding, and they
// meet by edge and tag, within those in the order issued. An asynchronous message is under way while the rank's
// thread computes. A queue that fails ends alone.
//
// Threads: the owning rank's.
// Cost:    a communicator per edge and tag on each of its ends, made at once: declare what there is to send. Each
//          starts a thread with its first asynchronous message, unless CommOptions gives it one; two queues that
//          are given the same thread wait for each other again.
class Edges {
 public:
  // Makes a group of `ranks` (world ranks, ascending): mostly World::NewGroup.
  using MakeGroup = absl::FunctionRef<std::shared_ptr<Communicator>(const std::string& name,
                                                                    const std::vector<int>& ranks)>;

  // `ranks`: the group's world ranks, ascending, with `world_rank`, this one. Every member calls it, with the same
  // `name`, `ranks` and `edges`.
  // Errors: InvalidArgument for an edge that is given twice, leads to itself or leaves the group, or has no tag.
  Edges(const std::string& name, const std::vector<int>& ranks, int world_rank, absl::Span<const Edge> edges,
        MakeGroup make_group);

  // As Communicator's of the same names.
  // Errors: InvalidArgument for an edge or a tag that has not been declared.
  Work Send(const Tensor& tensor, int to, int tag, CommOptions options = {});
  Work Recv(const Tensor& tensor, int from, int tag, CommOptions options = {});

  // The queue itself, "NAME FROM->TO tag TAG" with world ranks: what it is called in errors and the ledger.
  // Errors: as Send.
  Communicator& queue(int from, int to, int tag) const;

  // Of every queue.
  void set_timeout(std::chrono::milliseconds timeout);

 private:
  const std::string name_;
  const std::vector<int> ranks_;
  int me_ = 0;
  std::map<std::tuple<int, int, int>, std::shared_ptr<Communicator>> queues_;  // by from, to, tag
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_EDGES_H_

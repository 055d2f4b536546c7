#ifndef WEFT_RUNTIME_COMM_LOCAL_HUB_H_
#define WEFT_RUNTIME_COMM_LOCAL_HUB_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/local/group.h"

namespace weft {

// Where ranks that are threads of one process find each other: one per set of ranks that run together. It
// matches the members of groups, and can end all groups at once.
//
// Lifetime: shared by the launcher and every communicator.
// Threads:  any.
class LocalHub {
 public:
  explicit LocalHub(int num_ranks);

  // The group of `ranks` for `world_rank`, one of them: members that make their n-th group of these ranks
  // share one. Does not wait for the others.
  // Errors: InvalidArgument if a member gave it another name (the members make groups in different orders);
  //         the group has failed for the others then. Aborted after AbortAll.
  std::shared_ptr<LocalGroup> Join(int world_rank, const std::string& name, const std::vector<int>& ranks);

  // Ends every group, those still to come too, with Aborted.
  void AbortAll(const std::string& reason);

  // `world_rank`'s function has returned and its workers have ended: tells its groups that it is gone. Called
  // by that rank's thread.
  void FinishRank(int world_rank);

 private:
  struct Meeting {
    std::shared_ptr<LocalGroup> group;
    int num_joined = 0;
  };
  // The groups of one rank set: how many each member has made, and those that some have yet to join.
  struct Family {
    std::vector<int64_t> num_made;
    std::map<int64_t, Meeting> open;
  };

  std::shared_ptr<LocalGroup> NewGroup(const std::string& name, const std::vector<int>& ranks);

  const bool spin_;
  std::mutex mutex_;
  std::map<std::vector<int>, Family> families_;
  std::vector<std::weak_ptr<LocalGroup>> groups_;
  std::vector<bool> finished_;  // by world rank
  std::optional<std::string> abort_reason_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_LOCAL_HUB_H_

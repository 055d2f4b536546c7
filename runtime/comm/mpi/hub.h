#ifndef WEFT_RUNTIME_COMM_MPI_HUB_H_
#define WEFT_RUNTIME_COMM_MPI_HUB_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/comm/mpi/group.h"
#include "runtime/comm/mpi/packet.h"
#include "runtime/comm/mpi/transport.h"

namespace weft {

// One rank's groups: matches them with those of its peers, brings each the packets about it, and can end all
// groups of the job at once.
//
// Lifetime: shared by the rank's launcher, its groups and, until the next hub, the MpiEnvironment, which makes it. Once that
//           is gone, it and its groups can only be let go of.
// Threads:  any.
class MpiHub : public std::enable_shared_from_this<MpiHub> {
 public:
  explicit MpiHub(std::shared_ptr<MpiTransport> transport);

  // This rank's next group of `ranks` (ascending, this one among them). Members that make their n-th group of
  // these ranks share one; nobody waits for the others. A member that has given it another name (the members
  // make groups in different orders) ends the group with InvalidArgument, for all.
  // Errors: Aborted after AbortAll, here or elsewhere.
  std::shared_ptr<MpiGroup> Join(const std::string& name, const std::vector<int>& ranks);

  // Ends every group of every rank, those still to come too, with Aborted.
  void AbortAll(const std::string& reason);

  // This rank's function has returned and its workers have ended: tells the peers, who would wait for it in
  // vain. Nothing can be issued any more.
  void FinishRank();

  // Waits until every rank has finished: what the hub holds of MPI is given back with the hub and its groups then, and is
  // kept otherwise. Returns false if not all have within `timeout`.
  bool AwaitPeers(std::chrono::milliseconds timeout);

 private:
  struct Parked {
    int from = 0;
    std::string packet;
  };

  void Handle(int from, MpiPacketReader packet);
  void HandleFinish(int from);
  void Forget(const MpiGroupKey& key);
  void AbortLocked(const std::string& reason);

  const std::shared_ptr<MpiTransport> transport_;
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> num_made_;              // groups of this rank, by the hash of the members
  std::map<MpiGroupKey, MpiGroup*> groups_;            // until they die: Forget comes first
  std::map<MpiGroupKey, std::vector<Parked>> parked_;  // about groups that this rank has yet to make
  std::vector<bool> finished_;                         // by rank
  std::optional<std::string> abort_reason_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_MPI_HUB_H_

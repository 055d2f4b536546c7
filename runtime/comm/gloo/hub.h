#ifndef WEFT_RUNTIME_COMM_GLOO_HUB_H_
#define WEFT_RUNTIME_COMM_GLOO_HUB_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "gloo/transport/device.h"
#include "runtime/comm/gloo/event_thread.h"
#include "runtime/comm/gloo/tcp_mesh.h"
#include "runtime/comm/gloo/ticker.h"
#include "runtime/store/store.h"

namespace weft {

// How a pair of ranks is connected.
enum class GlooPath {
  kAuto,          // memory if they share a host and can both open it, else TCP
  kSharedMemory,  // memory, or an error
  kTcp,
};

struct GlooOptions {
  GlooPath path = GlooPath::kAuto;

  // Where peers find this rank by TCP: a name or address of this machine, or a network interface. Neither:
  // what the machine's own name resolves to.
  std::string address = {};
  std::string interface = {};

  // Ranks of the same identity are taken to share memory, and try. Empty: this boot of the machine.
  std::string host_identity = {};
  std::string shared_memory_folder = "/dev/shm";

  // Ranks of the job on this machine; 0: as many as a group has. Where they outnumber the cores nobody spins.
  int ranks_on_host = 0;

  // A member that finds a peer gone waits this long for one that knows why (the owner's Fail or AbortAll).
  std::chrono::milliseconds reason_takes = std::chrono::milliseconds(0);

  // How long a new group waits for its members.
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
};

// What the gloo groups of one rank (one process) share: the store where members meet, the TCP device, the
// numbering of groups. It can end all groups at once.
//
// Lifetime: shared by its owner, the rank's world, and every communicator.
// Threads:  any.
class GlooHub {
 public:
  // A group, as the hub knows it.
  class Member {
   public:
    virtual ~Member() = default;
    virtual void Abort(const std::string& reason) = 0;
    virtual void Depart() = 0;  // this rank has left it
  };

  // `store` is this incarnation of the job's own: what others left in it does not meet.
  GlooHub(std::shared_ptr<Store> store, int world_rank, int world_size, GlooOptions options = {});
  ~GlooHub();

  int world_rank() const { return world_rank_; }
  int world_size() const { return world_size_; }
  const GlooOptions& options() const { return options_; }
  const std::string& host_identity() const { return host_identity_; }
  Store& store() { return *store_; }
  GlooTicker& ticker() { return ticker_; }

  // Ends every group, those still to come and those that still wait for members too, with Aborted.
  void AbortAll(const std::string& reason);

  // This rank's function has returned and its work is done: its groups' peers are told that it has left, and
  // get what is on its way to them, which takes up to a second where connections are TCP.
  void Finish();

  // For the groups.

  // "groups/0-3,8/2/": where the members of this rank's next group of `ranks` meet.
  std::string NextPrefix(const std::vector<int>& ranks);
  // A store's Get that AbortAll ends.
  // Errors: DeadlineExceeded after `deadline`; Aborted.
  std::string Get(const std::string& key, std::chrono::steady_clock::time_point deadline);
  std::shared_ptr<gloo::transport::Device> Device();
  GlooEventThread& event_thread() { return *event_thread_; }  // of the device, once it has been made
  void Add(const std::shared_ptr<Member>& group);             // Errors: Aborted after AbortAll
  // Keeps the connections of a group that this rank has left until its peers have what is on its way, and
  // `posted`, what still waits in them: without it Gloo would read nothing more.
  void Retire(std::shared_ptr<TcpMesh> mesh, std::shared_ptr<const void> posted);

 private:
  struct Retired {
    std::shared_ptr<TcpMesh> mesh;
    std::shared_ptr<const void> posted;
    std::chrono::steady_clock::time_point since;
  };

  void ThrowIfAborted() const;  // mutex_ held

  const std::shared_ptr<Store> store_;
  const int world_rank_;
  const int world_size_;
  const GlooOptions options_;
  const std::string host_identity_;
  GlooTicker ticker_;
  mutable std::mutex mutex_;
  std::map<std::vector<int>, int64_t> num_groups_;  // by rank set
  std::unique_ptr<GlooEventThread> event_thread_;
  std::shared_ptr<gloo::transport::Device> device_;  // made by the first group that needs it
  std::vector<std::weak_ptr<Member>> groups_;
  std::vector<Retired> retired_;
  std::optional<std::string> abort_reason_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_HUB_H_

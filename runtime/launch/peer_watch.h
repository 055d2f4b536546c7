#ifndef WEFT_RUNTIME_LAUNCH_PEER_WATCH_H_
#define WEFT_RUNTIME_LAUNCH_PEER_WATCH_H_

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "runtime/launch/job_store.h"

namespace weft {

// For a process that has its place in a job and no watch yet: what the others hear should it die, and that it fails, as
// "failed: <why>". Whoever keeps the store's server waits a second at most then, until all have heard.
void LeaveLastWill(JobStore& store, int rank);
void TellEarlyFailure(JobStore& store, int rank, int world_size, const std::string& how) noexcept;
// Looks once, where it waits for others before it has a watch.
// Errors: Aborted, with rank and how, if another is gone by now.
void ThrowIfPeerIsGone(JobStore& store);

// Tells this process when another of the job has died or failed, and the others when this one does: through
// one key of the job's store, which a dying process leaves as its last will. Works whatever the backend, and
// within milliseconds of the death; a process that is stopped, or whose machine has vanished, counts as dead
// after the store's keepalive bound.
//
// Cost:    a thread, which waits on the server.
// Threads: made and ended by one thread.
class PeerWatch {
 public:
  // `told` is called once, from the watch's thread, with the rank that is gone (-1: the store itself) and
  // how: "exited with code 9", if the launcher saw it; "failed: out of memory"; "cannot be reached: ...".
  // `store` has this process's last will, and outlives the watch.
  PeerWatch(JobStore& store, int rank, int world_size,
            std::function<void(int rank, const std::string& how)> told);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // This process fails, as "failed: <why>": the others are told so. If it keeps the store's server it waits a
  // second at most until all have heard.
  void TellFailure(const std::string& how) noexcept;

  // This process is done. If it keeps the store's server it waits until every other is done or one is dead, and is told of
  // that one. Otherwise it is told nothing more, and waits for the server's end as JobStore does.
  void Finish() noexcept;

 private:
  void Loop();
  void Tell(int rank, const std::string& how);  // unless this process is done
  void Stop();

  JobStore& store_;
  const int rank_;
  const int world_size_;
  const std::function<void(int, const std::string&)> told_;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> dead_ = false;  // somebody is
  std::atomic<bool> is_done_ = false;
  std::thread thread_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_PEER_WATCH_H_

// How the ranks of a world agree on what becomes of a save or a load.

#ifndef WEFT_DTENSOR_CHECKPOINT_STATE_AGREEMENT_H_
#define WEFT_DTENSOR_CHECKPOINT_STATE_AGREEMENT_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "runtime/comm/communicator.h"
#include "runtime/launch/world.h"

namespace weft {

// Rounds in which every rank does its part, rank 0 concludes from what all report, and all get its word; through the
// world's store, so that a round may run on another thread than the rank's. One round at a time.
//
// Lifetime: ends before the world.
class Agreement {
 public:
  // Every rank makes one, in the same order; or the first `num_ranks` of the world, if that is not 0.
  // Cost: a group of these ranks, and one broadcast of 8 bytes.
  // Errors: InvalidArgument for a timeout that is not above 0, and for a rank that is not among them.
  Agreement(World& world, std::chrono::milliseconds timeout, int num_ranks = 0);
  ~Agreement();

  int rank() const { return rank_; }
  int size() const { return size_; }  // how many ranks take part

  struct Round {
    // This rank's part; returns its report, of a few KiB at most. Every rank.
    std::function<std::string()> part;
    // Rank 0, once all parts have ended well: given the reports by rank, returns the word. May be empty: the word is "".
    std::function<std::string(const std::vector<std::string>& reports)> conclude = nullptr;
    // Rank 0, once all parts have ended and any of them, or `conclude`, has failed. Its errors are dropped.
    std::function<void()> undo = nullptr;
  };
  // The word of rank 0. Where a part fails on any rank, or `conclude` does, every rank throws that error, which says which
  // rank's it is.
  // Threads: any, one at a time.
  // Cost:    a few calls of the store per rank.
  // Errors:  also DeadlineExceeded when a rank does not come to its end within the timeout, and Aborted once a rank is dead.
  std::string Agree(const Round& round);

  // A round that waits for other ranks, now or later, throws Aborted soon; so should a part that lasts, by `cancelled`. For
  // whoever ends without them.
  // Threads: any.
  void Cancel() { stop_.request_stop(); }
  std::stop_token cancelled() const { return stop_.get_token(); }

  // Everybody's text, by rank.
  // Threads: the rank's thread.
  // Cost:    two all-gathers, of 8 bytes per rank and of the texts.
  std::vector<std::string> AllGather(const std::string& mine);

  // Messages between these ranks, by rank: tensors on the host, as Communicator::SendRecv.
  // Threads: the rank's thread.
  void SendRecv(absl::Span<const Message> sends, absl::Span<const Message> receives);

 private:
  std::string Key(int64_t round, const std::string& what) const;
  std::vector<std::string> Collect(int64_t round);
  std::string Await(const std::string& key, std::chrono::steady_clock::time_point deadline);

  Store& store_;
  const int rank_;
  const int size_;
  const std::chrono::milliseconds timeout_;
  std::shared_ptr<Communicator> group_;
  int64_t id_ = 0;     // of this agreement, among those of the world
  int64_t round_ = 0;  // the next one's number
  std::stop_source stop_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_STATE_AGREEMENT_H_

#ifndef WEFT_RUNTIME_COMM_LINK_TURNS_H_
#define WEFT_RUNTIME_COMM_LINK_TURNS_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

namespace weft {

// What the bytes of an operation go by, as bits.
inline constexpr uint32_t kMemoryLink = 1;
inline constexpr uint32_t kNetworkLink = 2;
inline constexpr uint32_t kEveryLink = kMemoryLink | kNetworkLink;

// Decides which of one rank's operations goes first over a link that they share. Between two chunks, an operation waits while
// one of higher priority moves. Off until Set says otherwise.
//
// An operation *moves* on a rank from when that rank has seen that all members have entered it, until its part in it has
// ended. What does not move holds nothing, and is not held, though bytes for peers that came early may be on their way. No
// ranks can wait for each other because of a turn:
// - Turns hold what a worker or the rank's thread is in the midst of. Of an operation that moves anywhere, every member has
//   issued it and runs it now; one that has not yet seen all the others enter is not held until it has.
// - Of the operations that move anywhere, one of the highest priority is held nowhere, so it ends. Then so does the next:
//   those that hold it, on whatever rank, are of higher priority, and have ended. So each ends, in order of priority,
//   whichever order ranks issue them in. What has not been entered by all holds nothing: a rank that waits for its peers
//   holds no chunk that one of these peers may be waiting for.
// - That is so as long as operations of higher priority are finitely many. Where they need not be (a loop of them until an
//   operation of lower priority has finished), or a peer has died in the midst of one, `most_held` ends the wait: an operation
//   is held that long at a time, and a quarter of its timeout in all, so that no peer gives up on it.
//
// Values do not depend on turns, nor on whether all ranks have them.
//
// Units:   `chunk_bytes` are bytes that this rank moves, in or out.
// Threads: any.
class LinkTurns {
 public:
  static constexpr int64_t kChunkBytes = 1 << 20;
  static constexpr std::chrono::milliseconds kMostHeld{100};

  // `chunk_bytes`: whole lines of 64; less than the default is for tests.
  explicit LinkTurns(int64_t chunk_bytes = kChunkBytes, std::chrono::milliseconds most_held = kMostHeld)
      : chunk_bytes_((chunk_bytes + 63) / 64 * 64), most_held_(most_held) {}
  LinkTurns(const LinkTurns&) = delete;
  LinkTurns& operator=(const LinkTurns&) = delete;

  // Of operations that begin from now on.
  void Set(bool on) { on_.store(on, std::memory_order_relaxed); }
  bool on() const { return on_.load(std::memory_order_relaxed); }

  // How often an operation has been held so far.
  int64_t num_held() const { return num_held_.load(); }

  // One operation, while it runs.
  //
  // Threads: the one that runs it.
  class Turn {
   public:
    // `priority`: the higher goes first. `timeout`: the operation's.
    Turn(LinkTurns& turns, int priority, uint32_t links, std::chrono::milliseconds timeout);
    ~Turn() { End(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    // All members have entered: it moves, until End. A second call does nothing.
    void Begin();
    void End();

    int64_t chunk_bytes() const { return turns_.chunk_bytes_; }

    // So much more has been moved.
    void Fill(int64_t num_bytes) { filled_bytes_ += num_bytes; }
    // A chunk is full: Hold before more is moved. Behind the last chunk nobody calls it, so what has ended is not held.
    bool is_full() const { return filled_bytes_ >= turns_.chunk_bytes_; }
    // If a chunk is full, begins the next one: first waits while an operation of higher priority on the same links moves. Before
    // Begin it does nothing, and the chunk stays full. Called holding no lock, and nothing that peers wait for before they
    // take part in that one.
    void Hold();

   private:
    friend class LinkTurns;

    LinkTurns& turns_;
    const int priority_;
    const uint32_t links_;
    std::chrono::nanoseconds left_;  // of the time for which it may be held
    int64_t filled_bytes_ = 0;       // of the chunk
    bool moves_ = false;
  };

 private:
  bool MustWait(const Turn& turn) const;

  const int64_t chunk_bytes_;
  const std::chrono::milliseconds most_held_;
  std::atomic<bool> on_ = false;
  std::atomic<int64_t> num_held_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<const Turn*> moving_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_LINK_TURNS_H_

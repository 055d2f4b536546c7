#ifndef WEFT_RUNTIME_COMM_LEDGER_H_
#define WEFT_RUNTIME_COMM_LEDGER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/collective.h"

namespace weft {

// What the caller says about a collective; opaque to runtime/comm, filled by dtensor. A small value.
struct CommTag {
  uint8_t purpose = 0;   // dtensor's enum: param, grad, activation, loss, norm, metric
  int32_t path_id = -1;  // dtensor's number for the module path

  bool operator==(const CommTag&) const = default;
};

// The collectives of one kind, over one group, with one tag, together, as this rank saw them. A value.
struct LedgerEntry {
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::string group;  // the communicator's name, e.g. the axes "dp" or "dp.tp"
  CommTag tag = {};
  int64_t calls = 0;      // that this rank has issued; one that throws is not counted
  int64_t num_bytes = 0;  // of those: what the members lacked, summed over the group; see Ledger
  double seconds = 0;     // of those that have ended: the sum of their times on this rank, begin to end

  bool operator==(const LedgerEntry&) const = default;
};

// Counts a rank's collectives, by kind, group and tag: it grows with these, not with the number of calls.
// Calls and bytes are there once the call has returned, asynchronous or not; seconds once the operation has
// ended. What is issued before Clear and ends after it adds its seconds to what follows.
//
// An operation begins when it runs: when the worker, or the device's stream, has come to it. So operations of
// one group never overlap, and their seconds are at most the time that has passed; asynchronous ones of
// several groups may overlap.
//
// Units:   summing `num_bytes` over all ranks' ledgers counts each collective once. Group rank 0 counts a
//          collective's bytes; of an all-to-all and of messages each receiver counts what it gets from
//          others.
// Cost:    a call adds to three words, some 65 instructions; the first of its kind, group and tag searches a
//          map.
// Threads: rows by any; the rest by the owning rank.
class Ledger {
 public:
  // One entry, as communicators write it.
  class Row {
   public:
    // A call has been issued.
    void AddCall(int64_t num_bytes);
    // An operation has ended, which took that long.
    void AddTime(int64_t nanoseconds) { nanoseconds_.fetch_add(nanoseconds, std::memory_order_relaxed); }

   private:
    friend class Ledger;
    std::atomic<int64_t>* num_begun_ = nullptr;  // the ledger's
    std::atomic<int64_t> place_ = 0;             // among the rows, by their first calls
    std::atomic<int64_t> calls_ = 0;
    std::atomic<int64_t> num_bytes_ = 0;
    std::atomic<int64_t> nanoseconds_ = 0;
  };

  // Knows of operations whose end nobody reports, such as those in a device's streams. The ledger asks its
  // sources before it is read or cleared.
  class Source {
   public:
    virtual ~Source() = default;
    // Adds the times of the operations, and of the waits for them, that have ended by now.
    virtual void TellEnded() noexcept = 0;
  };
  void AddSource(std::weak_ptr<Source> source);

  // The row of these; lives as long as the ledger.
  Row* RowOf(CollectiveKind kind, const std::string& group, const CommTag& tag);

  // Time that the rank's own thread has spent in communication instead of computing, since the last Clear: in
  // collectives that it waits for, and in waiting for what others have to finish. `waiting`: until the last
  // member had entered; the rest is moving. Backends that cannot tell leave all of it to moving. On a device it is the
  // time that the rank's stream has stood still for collectives of other streams, as far as it has ended; all of it is
  // moving.
  struct Exposed {
    double waiting_seconds = 0;
    double moving_seconds = 0;
    double seconds() const { return waiting_seconds + moving_seconds; }

    bool operator==(const Exposed&) const = default;
  };
  void AddExposed(int64_t waiting_ns, int64_t moving_ns) {
    exposed_waiting_ns_.fetch_add(waiting_ns, std::memory_order_relaxed);
    exposed_moving_ns_.fetch_add(moving_ns, std::memory_order_relaxed);
  }
  Exposed exposed() const;

  // An operation runs from `Begin` to `End`, at these times (FlightClock); several may at once.
  void Begin(int64_t now_ns);
  void End(int64_t now_ns);
  // Seconds since the last Clear in which some operation ran, those that run now until now: at most the time that has
  // passed. Without those of a device's streams.
  double busy_seconds() const;

  // In the order of their first calls since the last Clear.
  std::vector<LedgerEntry> entries() const;
  int64_t num_bytes() const;
  double seconds() const;
  void Clear();

  Ledger();
  ~Ledger();

 private:
  struct State;
  void AskSources() const;

  std::unique_ptr<State> state_;
  std::atomic<int64_t> exposed_waiting_ns_ = 0;
  std::atomic<int64_t> exposed_moving_ns_ = 0;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_LEDGER_H_

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
  int64_t calls = 0;
  int64_t num_bytes = 0;  // what the members lacked, summed over the group; recorded on group rank 0, else 0
  double seconds = 0;     // the sum of the calls', from entry to completion on this rank

  bool operator==(const LedgerEntry&) const = default;
};

// Counts a rank's collectives, by kind, group and tag: it grows with these, not with the number of calls.
//
// Units:   summing `num_bytes` over all ranks' ledgers counts each collective once.
// Threads: rows by any, as a communicator's worker; reading is for the owning rank between steps.
class Ledger {
 public:
  // One entry, as communicators write it.
  class Row {
   public:
    void AddCall(int64_t num_bytes);
    void AddTime(int64_t nanoseconds) { nanoseconds_.fetch_add(nanoseconds, std::memory_order_relaxed); }

   private:
    friend class Ledger;
    std::atomic<int64_t>* num_begun_ = nullptr;  // the ledger's
    std::atomic<int64_t> place_ = 0;             // among the rows, by their first calls
    std::atomic<int64_t> calls_ = 0;
    std::atomic<int64_t> num_bytes_ = 0;
    std::atomic<int64_t> nanoseconds_ = 0;
  };

  // The row of these; lives as long as the ledger.
  Row* RowOf(CollectiveKind kind, const std::string& group, const CommTag& tag);

  // In the order of their first calls since the last Clear.
  std::vector<LedgerEntry> entries() const;
  int64_t num_bytes() const;
  double seconds() const;
  void Clear();

  Ledger();
  ~Ledger();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_LEDGER_H_

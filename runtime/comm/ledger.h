#ifndef WEFT_RUNTIME_COMM_LEDGER_H_
#define WEFT_RUNTIME_COMM_LEDGER_H_

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

// One collective as this rank saw it.
struct LedgerEntry {
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::string group;      // the communicator's name, e.g. the axes "dp" or "dp.tp"
  int64_t num_bytes = 0;  // what the members lacked, summed over the group; recorded on group rank 0, else 0
  double seconds = 0;     // from entry to completion on this rank
  CommTag tag;
};

// Counts a rank's collectives. Summing `num_bytes` over all ranks' ledgers counts each collective once.
//
// Threads: Record may come from a communicator's worker; reading is for the owning rank between steps.
class Ledger {
 public:
  void Record(LedgerEntry entry);
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

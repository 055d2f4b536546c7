#ifndef WEFT_TESTS_PARALLEL_SCHEDULER_NUM_CALLS_H_
#define WEFT_TESTS_PARALLEL_SCHEDULER_NUM_CALLS_H_

#include <cstdint>

#include "dtensor/context/rank_state.h"
#include "runtime/comm/ledger.h"
#include "runtime/launch/world.h"

namespace weft {

// How many collectives of a purpose this rank's ledger holds.
inline int64_t NumCalls(World& world, Purpose purpose) {
  int64_t calls = 0;
  for (const LedgerEntry& entry : world.ledger().entries()) {
    if (entry.tag.purpose == static_cast<uint8_t>(purpose)) calls += entry.calls;
  }
  return calls;
}

}  // namespace weft

#endif  // WEFT_TESTS_PARALLEL_SCHEDULER_NUM_CALLS_H_

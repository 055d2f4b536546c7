#ifndef WEFT_RUNTIME_LAUNCH_CLOCK_OFFSET_H_
#define WEFT_RUNTIME_LAUNCH_CLOCK_OFFSET_H_

#include <cstdint>

#include "runtime/comm/communicator.h"
#include "runtime/launch/world.h"
#include "runtime/trace/span.h"

namespace weft {

// How many nanoseconds another tracer is ahead of this rank's, give or take `error_ns`.
struct ClockOffset {
  int64_t ns = 0;
  int64_t error_ns = 0;
};

// How far group rank 0's tracer is ahead of this rank's: add it to a time of this one to have it in
// terms of the other. 0 on rank 0. Processes count from when they began, on clocks of their own; so the spans of
// several are laid side by side (tools/merge_traces.py).
//
// Of several round trips the shortest counts: its answer was given in its middle, give or take half of it, which is
// the error.
//
// Cost:   8 messages of 8 bytes each way for every rank, rank after rank; every member calls it.
// Source: Cristian, "Probabilistic clock synchronization", 1989.
ClockOffset MeasureClockOffset(Communicator& group, const Tracer& tracer);

// Measures it among the first `num_ranks` ranks of the world, which call it before they do anything else, and notes it in
// the tracer. The ledger counts none of it.
void NoteClockOffset(World& world, int num_ranks, Tracer& tracer);

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_CLOCK_OFFSET_H_

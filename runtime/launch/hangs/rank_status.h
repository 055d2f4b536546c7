#ifndef WEFT_RUNTIME_LAUNCH_HANGS_RANK_STATUS_H_
#define WEFT_RUNTIME_LAUNCH_HANGS_RANK_STATUS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/comm/flight_recorder.h"

namespace weft {

// An operation of a communicator that has not ended.
struct PendingOperation {
  std::string group;       // FlightGroup::Key: the same on all members
  std::string axis;        // the group's name: "tp"
  std::vector<int> ranks;  // world ranks of the members, ascending
  uint64_t sequence = 0;
  std::string call;        // "all_reduce(f32, sum, count 12)"
  std::string where;       // "blocks.2.attn.qkv, activation"; may be empty
  bool collective = true;  // every member takes part; false: send_recv
  bool blocking = true;    // the rank's own thread, or what its device does next, waits for it
  bool begun = true;       // false: queued, on a worker or in a device's stream, behind what is not done
  bool awaited = false;    // not blocking, but the rank's own thread waits for it in Work::Wait
  uint64_t queue = 0;      // not blocking: which of the rank's workers or streams it goes through
  double seconds = 0;      // since it began; one that is queued: since it was issued
  double issued_seconds = 0;

  bool operator==(const PendingOperation&) const = default;

  // "all_reduce(f32, sum, count 12) #41 on axis tp (blocks.2.attn.qkv, activation)".
  std::string ToString() const;
};

// What a rank tells the others when a collective is late: where it is, and how far it has come on each group.
struct RankStatus {
  int rank = 0;
  std::vector<PendingOperation> pending = {};            // oldest first
  std::map<std::string, uint64_t> num_collectives = {};  // issued so far, by group key
  std::string last = {};                                 // what it was last seen at: "data loader"
  double last_seconds = 0;                               // how long ago
  std::string place = {};                                // where it computes: "forward of blocks.4"
  std::string activity = {};  // what it has told that it does (FlightRecorder::SetActivity)

  bool operator==(const RankStatus&) const = default;

  // The blocking operation that its thread is in, or else the asynchronous one that it waits for; null if neither.
  const PendingOperation* blocked_in() const;

  // That, or, if it is queued, what its worker or stream is in; null if there is no such thing. Only when this ends
  // does the thread go on.
  const PendingOperation* held_by() const;

  // That, or else the oldest that has begun: what may take too long. Null if nothing has begun.
  const PendingOperation* waits_in() const;

  std::string ToJson() const;
  // Errors: InvalidArgument if `text` is not what ToJson makes.
  static RankStatus FromJson(const std::string& text);
};

RankStatus StatusOf(int rank, const FlightRecorder& recorder);

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_HANGS_RANK_STATUS_H_

#ifndef WEFT_RUNTIME_LAUNCH_HANGS_FLIGHT_RECORD_H_
#define WEFT_RUNTIME_LAUNCH_HANGS_FLIGHT_RECORD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/comm/flight_recorder.h"

namespace weft {

// The life of a job's ranks that a record is of, and when it was written. A value.
struct FlightLife {
  std::string run_id = {};
  int64_t generation = 0;  // restarts of the job before it
  int64_t time_ms = 0;     // since 1970, by the rank's clock

  bool operator==(const FlightLife&) const = default;
};

// A rank's flight record as JSON:
//
//   {"rank": 0, "world_size": 4, "run_id": "none", "generation": 1, "time_ms": 1790000000000, "activity": "data loader",
//    "groups": [{"key": "tp[0,1]#0", "name": "tp", "ranks": [0, 1], "num_collectives": 41}],
//    "entries": [{"id": 93, "group": "tp[0,1]#0", "sequence": 41, "kind": "all_reduce",
//                 "call": "all_reduce(f32, sum, count 12)", "where": "blocks.2.attn.qkv, activation",
//                 "async": false, "state": "running", "issued_ago": 4.2, "seconds": 4.2}]}
//
// Entries oldest first; `issued_ago` and `seconds` (from begin to end, or till now; of one that is queued,
// from its issue) in seconds, so that the records of machines with other clocks can be compared.
std::string FlightToJson(int rank, int world_size, const FlightRecorder& recorder,
                         const FlightLife& life = {});

// Writes it to `folder`/flight_rank_<rank>.json, making the folder if need be. The file is whole at any time.
// Errors: InvalidArgument that names the path if it cannot be written.
void WriteFlight(const std::string& folder, int rank, int world_size, const FlightRecorder& recorder,
                 const FlightLife& life = {});

// Errors: InvalidArgument for a text that is no record.
void RequireFlightRecord(const std::string& text);

// What tools/flight_report prints of the texts of all ranks' records: per group, how far each member has
// come, and the operations that had not ended or that members disagree on. A folder may hold records of earlier lives, of
// ranks that have left none since: those are named, and left out. The life of the record that was written last counts.
// Errors: InvalidArgument for a text that is no record, or for two of one rank.
std::string FlightReport(const std::vector<std::string>& records);

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_HANGS_FLIGHT_RECORD_H_

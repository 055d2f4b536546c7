#ifndef WEFT_RUNTIME_LAUNCH_HANGS_FLIGHT_RECORD_H_
#define WEFT_RUNTIME_LAUNCH_HANGS_FLIGHT_RECORD_H_

#include <string>
#include <vector>

#include "runtime/comm/flight_recorder.h"

namespace weft {

// A rank's flight record as JSON:
//
//   {"rank": 0, "world_size": 4, "activity": "data loader",
//    "groups": [{"key": "tp[0,1]#0", "name": "tp", "ranks": [0, 1], "num_collectives": 41}],
//    "entries": [{"id": 93, "group": "tp[0,1]#0", "sequence": 41, "kind": "all_reduce",
//                 "call": "all_reduce(f32, sum, count 12)", "where": "blocks.2.attn.qkv, activation",
//                 "async": false, "state": "running", "issued_ago": 4.2, "seconds": 4.2}]}
//
// Entries oldest first; `issued_ago` and `seconds` (from begin to end, or till now; of one that is queued,
// from its issue) in seconds, so that the records of machines with other clocks can be compared.
std::string FlightToJson(int rank, int world_size, const FlightRecorder& recorder);

// Writes it to `folder`/flight_rank_<rank>.json, making the folder if need be.
// Errors: InvalidArgument that names the path if it cannot be written.
void WriteFlight(const std::string& folder, int rank, int world_size, const FlightRecorder& recorder);

// What tools/flight_report prints of the texts of all ranks' records: per group, how far each member has
// come, and the operations that had not ended or that members disagree on.
// Errors: InvalidArgument for a text that is no record, or for two of one rank.
std::string FlightReport(const std::vector<std::string>& records);

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_HANGS_FLIGHT_RECORD_H_

// What a rank that runs a schedule is said to do.

#ifndef WEFT_PARALLEL_PIPELINE_ACTION_NAMES_H_
#define WEFT_PARALLEL_PIPELINE_ACTION_NAMES_H_

#include <map>
#include <tuple>

#include "dtensor/context/rank_state.h"
#include "parallel/pipeline/schedule.h"
#include "runtime/comm/flight_recorder.h"

namespace weft {

// The names of actions, as the flight recorder and the ledger know them, each made at its first use.
class ActionNames {
 public:
  struct Name {
    const char* activity = "";  // "I of stage 1, microbatch 3"
    int path_id = 0;            // of "stage 1"
  };

  // Both outlive it.
  ActionNames(FlightRecorder& recorder, RankState& state) : recorder_(recorder), state_(state) {}

  const Name& Of(const PipelineAction& action);

 private:
  FlightRecorder& recorder_;
  RankState& state_;
  std::map<std::tuple<ActionKind, int, int>, Name> names_;  // by kind, stage, microbatch
};

}  // namespace weft

#endif  // WEFT_PARALLEL_PIPELINE_ACTION_NAMES_H_

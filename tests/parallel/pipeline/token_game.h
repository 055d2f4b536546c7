// Schedules as a game of tokens: another account of what is legal, which shares no code with the checker.

#ifndef WEFT_TESTS_PARALLEL_PIPELINE_TOKEN_GAME_H_
#define WEFT_TESTS_PARALLEL_PIPELINE_TOKEN_GAME_H_

#include "parallel/pipeline/schedule.h"

namespace weft {

struct GameVerdict {
  // A state was reached in which all lists are done and no token is left that should not be.
  bool ends = false;
  // A state was reached in which nobody can move, and which is none of those.
  bool stuck = false;
  // There are states that were not visited: more than were allowed.
  bool has_more = false;

  bool operator==(const GameVerdict&) const = default;
};

// Every action takes tokens from places and puts others there: F takes its input, B takes what F has kept and
// the gradient of the output. A send and its receive move together. Ranks move in any order: the states of
// one whole way are visited, and up to `most_states` others.
GameVerdict PlayTokenGame(const PipelineSchedule& schedule, int most_states);

}  // namespace weft

#endif  // WEFT_TESTS_PARALLEL_PIPELINE_TOKEN_GAME_H_

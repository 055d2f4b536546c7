#ifndef WEFT_TOOLS_LAUNCHER_RENDEZVOUS_GENERATION_H_
#define WEFT_TOOLS_LAUNCHER_RENDEZVOUS_GENERATION_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace weft {

// A generation is one life of a job's workers: they start together on all nodes and end together. The first
// is number 0; TORCHELASTIC_RESTART_COUNT is this number.

// What a generation is for one node.
struct Assignment {
  int64_t generation = 0;
  int restarts = 0;  // generations that ended badly since the last one that had saved, over all nodes
  int node_rank = 0;
  int num_nodes = 1;
  int rank_offset = 0;  // rank of this node's first worker; the others follow
  int world_size = 1;
  std::string master_addr = {};
  int master_port = 0;

  bool operator==(const Assignment&) const = default;
};

// Why a generation ended: the same on every node.
struct GenerationEnd {
  enum class Kind {
    kFinished,  // every worker of every node exited with 0
    kFailed,    // a worker did not, or could not be started
    kLost,      // a node was not heard of for too long
    kLeft,      // a node was told to stop
    kGrow,      // nothing is wrong: a node wants to join, and there is room
  };

  Kind kind = Kind::kFinished;
  bool restart = false;       // whether there will be another generation
  int exit_code = 0;          // of the job, if there is none
  std::string node = {};      // the id of the node that failed, was lost, or left
  std::string headline = {};  // one line
  std::string report = {};    // the failed worker's, several lines; may be empty
  // Of kLeft: what the workers of the node that was told to stop have, to save and end. Those of other nodes have as much.
  std::chrono::milliseconds grace{0};
  // The workers had saved all that they need to go on (NoteSave): failures before that count no more.
  bool saved = false;
  int64_t time_s = 0;  // since 1970, by the clock of the node that published it

  bool operator==(const GenerationEnd&) const = default;

  // Whether it counts against --max-restarts.
  bool IsFailure() const { return kind == Kind::kFailed || kind == Kind::kLost; }

  // Why the job is over, if this was its last.
  std::string WhyOver() const { return kind == Kind::kFinished ? "it has finished" : headline; }

  std::string ToText() const;
  // Errors: DataLoss if `text` is from nobody's ToText.
  static GenerationEnd FromText(absl::string_view text);
};

}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_RENDEZVOUS_GENERATION_H_

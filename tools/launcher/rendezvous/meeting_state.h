#ifndef WEFT_TOOLS_LAUNCHER_RENDEZVOUS_MEETING_STATE_H_
#define WEFT_TOOLS_LAUNCHER_RENDEZVOUS_MEETING_STATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tools/launcher/rendezvous/generation.h"

namespace weft {

// A node that takes part in a meeting.
struct MeetingNode {
  std::string id = {};    // of one life of one launcher
  std::string host = {};  // for people
  int fixed_rank = -1;    // -1: ranks follow the order of arrival
  int64_t arrival = -1;   // -1: has not been here; otherwise the ordinal of its coming, which it keeps

  bool operator==(const MeetingNode&) const = default;
};

// A worker of that node was the first of its generation to fail.
struct NodeFailure {
  std::string id = {};
  int64_t time_s = 0;  // since 1970, by the node's own clock

  bool operator==(const NodeFailure&) const = default;
};

// What the nodes of a job know together: who is in, who is expected, who waits outside. One value in the
// store that nodes change by compare_set, so each change is one node's alone. A value: copies, compares.
struct MeetingState {
  // A node whose workers fail so often within that many seconds, nothing being saved in between, is left out, if the
  // others are enough without it.
  static constexpr int kMostFailures = 3;
  static constexpr int64_t kFailureWindow = 600;

  int64_t generation = 0;
  bool running = false;  // else its nodes are still being gathered
  int restarts = 0;      // after failures, since the last generation that had saved
  int min_nodes = 1;
  int max_nodes = 1;
  int workers_per_node = 1;
  int64_t num_arrivals = 0;
  std::vector<MeetingNode> nodes = {};  // in arrival order while gathering, in rank order while running
  // Gathering: ids of those who were in the generation before and should come back, and of those who have come from
  // outside since.
  std::vector<std::string> expected = {};
  std::vector<std::string> waiting = {};   // ids of those outside, who would join
  std::vector<std::string> gone = {};      // running: ids of nodes that take no part in what follows
  std::vector<NodeFailure> failures = {};  // since then, of each node up to kFailureWindow before its last
  std::vector<std::string> left_out = {};  // ids of those who may take part no more
  std::string closed = {};                 // why nobody may join any more; empty: not so

  bool operator==(const MeetingState&) const = default;

  const MeetingNode* Find(absl::string_view id) const;

  // Opens the generation after this one, which ended so: all of its nodes but the one that is gone should
  // come back, and those who wait may come where these leave room. Counts failures, and leaves out who fails too often.
  void Reopen(const GenerationEnd& end);

  bool IsLeftOut(absl::string_view id) const;

  // Adds `node`, which waits no more; one that has no arrival yet gets the next.
  void Join(MeetingNode node);

  // Node `id` takes no part in what follows: nobody waits for it.
  void Remove(absl::string_view id);

  // Nodes that are in, or should come back, or may come, without those that are gone.
  int NumStaying() const;

  // The nodes are complete: sorts them by rank.
  void Run();

  std::string ToText() const;
  // Errors: DataLoss if `text` is from nobody's ToText.
  static MeetingState FromText(absl::string_view text);

 private:
  void Count(const GenerationEnd& end);
};

}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_RENDEZVOUS_MEETING_STATE_H_

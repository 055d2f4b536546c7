#ifndef WEFT_RUNTIME_LAUNCH_WORLD_MEETING_H_
#define WEFT_RUNTIME_LAUNCH_WORLD_MEETING_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "runtime/launch/world_place.h"
#include "runtime/store/store.h"

namespace weft {

// How the ranks of a world by arguments meet, apart from how they reach their store.

// A rank that comes, for the others and for people. A value.
struct MeetingRank {
  std::string host = {};
  int process = 0;
  std::string id = {};  // of this coming: no other's

  bool operator==(const MeetingRank&) const = default;
  std::string ToString() const;  // "process 4711 on node0"
  std::string ToText() const;
  // Errors: DataLoss if `text` is from nobody's ToText.
  static MeetingRank FromText(absl::string_view text);
  // This process, with a new id.
  static MeetingRank Self();
};

// What the file of a world says: where its rank 0 listens, and who that is.
struct MeetingFile {
  MeetingRank rank0 = {};
  int port = 0;
  std::string token = {};

  // Makes the file; false if there is one.
  // Errors: Aborted, with the system's reason.
  bool Make(const std::string& path) const;
  // Nothing if there is no file.
  // Errors: InvalidArgument for what no rank 0 has written.
  static std::optional<MeetingFile> Read(const std::string& path);
  // From this machine by the loopback.
  std::string Address() const;
};

// Where a world's address points to; one of the two is set.
struct MeetingAddress {
  std::string host_and_port = {};
  std::string path = {};
};

// Errors: InvalidArgument for another text than "tcp://HOST:PORT" and "file:///PATH", and for a rank, a size or a time that
//         cannot be.
MeetingAddress ParsePlace(const WorldPlace& place);

// Meets all ranks of `place` in `store`, and returns who they are, by rank. `has_place` is called when this rank's number and
// size are not refused, before it counts as having come; `all_here` on rank 0 when all have come, before any of them returns.
// Errors: as JoinWorld, on all ranks that have come.
std::vector<MeetingRank> Meet(Store& store, const WorldPlace& place, const MeetingRank& self,
                              absl::FunctionRef<void()> has_place, absl::FunctionRef<void()> all_here);

// The error of a second rank of one number.
[[noreturn]] void ThrowTaken(const WorldPlace& place, const MeetingRank& first, const MeetingRank& self);

// The key of a rank in the meeting's store, which is there when it has come.
std::string MeetingKey(int rank);

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_WORLD_MEETING_H_

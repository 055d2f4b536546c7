// Which snapshot new ranks go on from, and who copies whose.

#ifndef WEFT_DTENSOR_CHECKPOINT_MEMORY_SNAPSHOT_CHOICE_H_
#define WEFT_DTENSOR_CHECKPOINT_MEMORY_SNAPSHOT_CHOICE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/checkpoint/memory/snapshot_piece.h"

namespace weft {

// A piece, and where it lies.
struct HeldPiece {
  int holder = 0;   // a rank of the node that has it, the one that reads it
  int segment = 0;  // of that node
  SnapshotStamp stamp;

  bool operator==(const HeldPiece&) const = default;
};

// A snapshot of which every piece is there.
struct SnapshotChoice {
  SnapshotKey key;
  std::vector<HeldPiece> pieces;  // by source

  bool operator==(const SnapshotChoice&) const = default;
};

// Of all pieces that lie anywhere, the newest whole snapshot above step `above`, if that is given; nothing, if none is whole.
// A rank's own piece comes before copies, then the lowest holder. Pieces of one source that differ are not of one snapshot:
// there is none then.
//
//   pieces of (step, generation): source              taken
//   (20,0): 0 1      (10,0): 0 1                      20
//   (20,0): 0        (10,0): 0 1                      10: of rank 1 nothing is there
//   (20,0): 0        (20,1): 1      (10,0): 0 1       10: of two generations
//   (20,0): 0 0 1                                     20: one of them is a copy
std::optional<SnapshotChoice> ChooseSnapshot(const std::vector<HeldPiece>& held,
                                             std::optional<int64_t> above = std::nullopt);

// The newest snapshot of which anything is there, whole or not.
std::optional<SnapshotKey> NewestKey(const std::vector<HeldPiece>& held);

// One per line, and back.
// Errors: Internal for any other text.
std::string FormatHeld(const std::vector<HeldPiece>& held);
std::vector<HeldPiece> ParseHeld(absl::string_view text);

// Rank `from`'s piece is copied by rank `to`, which is on another node, into the place of that node's local rank `slot`.
struct BuddyCopy {
  int from = 0;
  int to = 0;
  int slot = 0;

  bool operator==(const BuddyCopy&) const = default;
};

// Each node's pieces go to the next node, those of the last to the first: the loss of one node loses nothing. No copies, if there
// is one node. Where the next has fewer ranks, one copies for several.
//
//   nodes of ranks   copies from>to
//   0 0 1 1          0>2 1>3 2>0 3>1
//   0 0 1            0>2 1>2 2>0
//   0 0              none
//
// `node_of_rank`: by rank. In the order of `from`.
std::vector<BuddyCopy> BuddyCopies(const std::vector<int>& node_of_rank);

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_MEMORY_SNAPSHOT_CHOICE_H_

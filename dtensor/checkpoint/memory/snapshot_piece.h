// One rank's part of a snapshot, in a segment of memory.

#ifndef WEFT_DTENSOR_CHECKPOINT_MEMORY_SNAPSHOT_PIECE_H_
#define WEFT_DTENSOR_CHECKPOINT_MEMORY_SNAPSHOT_PIECE_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/checkpoint/folder/manifest.h"
#include "dtensor/checkpoint/folder/piece_file.h"
#include "dtensor/checkpoint/memory/segment.h"

namespace weft {

// Which snapshot: pieces with one key are of one state. Ordered by step, then by who came later. A job may train several
// times, one after another, each time into a folder of its own: the memory is the same.
struct SnapshotKey {
  int64_t step = 0;
  int64_t generation = 0;
  int64_t serial = 0;   // of the snapshots of that generation
  int world = 1;        // ranks, each of which has a piece
  uint64_t folder = 0;  // that the run saves into, by the CRC-64 of its path

  auto operator<=>(const SnapshotKey&) const = default;
  std::string ToString() const;  // "step 10 of generation 1"
};

// What a segment says of the piece in it.
//
//   0                  the stamp: the checksum of what follows it, and JSON; nothing while the rest is written
//   kSnapshotTries     how often ranks have begun to load the snapshot, a byte
//   kSnapshotElements  elements of the rank's boxes, by name, without gaps: num_bytes
//   after them         the head of a rank's file (piece_file.h), with the boxes' checksums: header_bytes
//   after it           of rank 0 the manifest, but for its files: manifest_bytes
struct SnapshotStamp {
  SnapshotKey key;
  int source = 0;  // the rank whose piece it is
  int64_t num_bytes = 0;
  int64_t header_bytes = 0;
  uint32_t header_crc32c = 0;
  int64_t manifest_bytes = 0;
  uint32_t manifest_crc32c = 0;

  bool operator==(const SnapshotStamp&) const = default;
  std::string ToText() const;
  // Nothing for any other text.
  static std::optional<SnapshotStamp> FromText(absl::string_view text);
};
inline constexpr int64_t kSnapshotElements = 64 << 10;  // a multiple of any system's pages
inline constexpr int64_t kSnapshotTries = kSnapshotElements - 1;

// The boxes that `rank` owns of a manifest's tensors, by name; without elements and checksums.
std::vector<PieceToSave> PiecesOwnedBy(const Manifest& manifest, int rank);
int64_t NumBytes(const std::vector<PieceToSave>& pieces);

// Before a piece is written: the segment has none, and room for one.
void BeginPiece(MemorySegment& segment, int64_t num_bytes);
// After its elements: sums them, writes the rest, and last the stamp, which it returns.
// `elements`: of the segment, those of `pieces` one after another. `manifest`: of the snapshot.
// Cost:   one read of the elements.
SnapshotStamp EndPiece(MemorySegment& segment, const Tensor& elements, std::vector<PieceToSave> pieces,
                       const Manifest& manifest, const SnapshotKey& key, int source);

// What lies in a segment; nothing, if no piece does.
std::optional<SnapshotStamp> ReadStamp(const MemorySegment& segment);
// The manifest that comes with a piece of rank 0.
std::string ReadSnapshotManifest(const MemorySegment& segment, const SnapshotStamp& stamp);
// What is wrong with the piece, or "": compares every checksum.
// Cost: one read of it.
std::string CheckPiece(const MemorySegment& segment, const SnapshotStamp& stamp);
// The same of elements and head alone, wherever they lie; `path` for errors.
std::string CheckPieceBytes(const std::string& path, const Tensor& bytes, const SnapshotStamp& stamp);

// How often a load of the snapshot has begun since it was written, or since one has ended well, at most 255.
int TriesOf(const MemorySegment& segment);
void SetTries(MemorySegment& segment, int tries);

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_MEMORY_SNAPSHOT_PIECE_H_

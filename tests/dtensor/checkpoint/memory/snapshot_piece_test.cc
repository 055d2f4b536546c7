#include "dtensor/checkpoint/memory/snapshot_piece.h"

#include <cstring>
#include <numeric>

#include "dtensor/checkpoint/memory/snapshot_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/crc32c.h"
#include "tests/dtensor/checkpoint/memory/test_nodes.h"

namespace weft {
namespace {

using testing::HasSubstr;

// Of five elements over two ranks: 3 and 2.
Manifest TestManifest() {
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
  Manifest manifest;
  manifest.step = 10;
  manifest.world = 2;
  manifest.tensors["a"] = {.type = {DType::kF32, {5}}, .mesh = mesh, .layout = Layout::Parse("[dp]", mesh)};
  manifest.tensors["b"] = {.type = {DType::kU8, {3}}, .mesh = mesh, .layout = Layout::Parse("[-]", mesh)};
  manifest.texts["run"] = "of a test";
  return manifest;
}

struct Written {
  SnapshotStamp stamp;
  std::vector<char> elements;
};
Written WritePiece(MemorySegment& segment, int rank) {
  const Manifest manifest = TestManifest();
  const std::vector<PieceToSave> pieces = PiecesOwnedBy(manifest, rank);
  BeginPiece(segment, NumBytes(pieces));
  EXPECT_EQ(ReadStamp(segment), std::nullopt);
  const Tensor elements = segment.Map(kSnapshotElements, NumBytes(pieces));
  Written written;
  written.elements.resize(static_cast<size_t>(elements.num_bytes()));
  std::iota(written.elements.begin(), written.elements.end(), static_cast<char>(3 + rank));
  std::memcpy(elements.data(), written.elements.data(), written.elements.size());
  written.stamp = EndPiece(segment, elements, pieces, manifest, {.step = 10, .world = 2}, rank);
  return written;
}

TEST(SnapshotPieceTest, IsAFileOfItsBoxes) {
  const TestNodes nodes(1, 1);
  for (const int rank : {0, 1}) {
    MemorySegment segment(nodes.PathOf(0, rank));
    const Written written = WritePiece(segment, rank);
    EXPECT_EQ(ReadStamp(segment), written.stamp);
    EXPECT_EQ(CheckPiece(segment, written.stamp), "");
    EXPECT_EQ(written.stamp.num_bytes, rank == 0 ? 12 + 3 : 8);
    const auto file = MakePieceReader(
        "piece", segment.Map(kSnapshotElements, written.stamp.num_bytes + written.stamp.header_bytes),
        written.stamp.header_bytes);
    const PieceTable table = ReadPieceTable(*file);
    ASSERT_EQ(table.size(), rank == 0 ? 2u : 1u);
    const PieceRecord& a = table.at("a");
    EXPECT_EQ(a.box, (ShardBox{{5}, {rank == 0 ? 0 : 3}, {rank == 0 ? 3 : 2}}));
    EXPECT_EQ(a.crc32c, Crc32c(written.elements.data(), a.num_bytes()));
    std::vector<char> read(static_cast<size_t>(a.num_bytes()));
    ReadAll(*file, a.offset, read.data(), std::ssize(read));
    EXPECT_EQ(std::memcmp(read.data(), written.elements.data(), read.size()), 0);
    const std::string text = ReadSnapshotManifest(segment, written.stamp);
    if (rank == 0) {
      EXPECT_EQ(ParseManifest("manifest", text), TestManifest());
    }
    EXPECT_EQ(text.empty(), rank != 0);
  }
}

// Any byte that matters, changed.
TEST(SnapshotPieceTest, EveryChangeIsSeen) {
  const TestNodes nodes(1, 1);
  MemorySegment segment(nodes.PathOf(0, 0));
  const SnapshotStamp stamp = WritePiece(segment, 0).stamp;
  const int64_t end = segment.num_bytes();
  EXPECT_EQ(end, kSnapshotElements + stamp.num_bytes + stamp.header_bytes + stamp.manifest_bytes);
  for (int64_t at = kSnapshotElements; at < end; ++at) {
    char byte = 0;
    segment.Read(at, &byte, 1);
    const char changed = static_cast<char>(byte ^ 4);
    segment.Write(at, &changed, 1);
    EXPECT_NE(CheckPiece(segment, stamp), "") << at;
    segment.Write(at, &byte, 1);
  }
  EXPECT_EQ(CheckPiece(segment, stamp), "");
  segment.Resize(end - 1);
  EXPECT_NE(CheckPiece(segment, stamp), "");
  segment.Resize(kSnapshotElements - 1);
  EXPECT_EQ(ReadStamp(segment), std::nullopt);
  segment.Resize(0);
  EXPECT_EQ(ReadStamp(segment), std::nullopt);
}

// A writer that dies at any place leaves no stamp; were the old one there still, its checksums would not hold.
TEST(SnapshotPieceTest, HalfAPieceIsNone) {
  const TestNodes nodes(1, 1);
  MemorySegment segment(nodes.PathOf(0, 0));
  const Written old = WritePiece(segment, 0);
  BeginPiece(segment, old.stamp.num_bytes);
  EXPECT_EQ(ReadStamp(segment), std::nullopt);
  const char other = 99;
  segment.Write(kSnapshotElements + 1, &other, 1);
  EXPECT_EQ(ReadStamp(segment), std::nullopt);
  // The mutant: the stamp stays while the piece is written.
  const std::string stale = old.stamp.ToText();
  segment.Write(0, stale.data(), std::ssize(stale));
  ASSERT_EQ(ReadStamp(segment), old.stamp);
  EXPECT_NE(CheckPiece(segment, old.stamp), "");
}

TEST(MemorySegmentTest, SaysWhatCannotBeOpened) {
  try {
    MemorySegment segment("/proc/self/fd/100000");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("memory for snapshots: '/proc/self/fd/100000' cannot be opened"));
  }
}

}  // namespace
}  // namespace weft

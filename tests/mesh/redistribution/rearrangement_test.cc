#include "mesh/redistribution/rearrangement.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "mesh/shard_math.h"

namespace weft {
namespace {

std::vector<DimRun> Rolled(int64_t extent, int64_t shift) {
  return {{0, 0, shift, extent - shift}, {0, extent - shift, 0, shift}};
}

Rearrangement Along(const Layout& layout, int dim, const Shape& shape, std::vector<DimRun> runs,
                    int64_t extent) {
  return {.sources = {{DType::kF32, shape}},
          .layout = layout,
          .dim = dim,
          .runs = std::move(runs),
          .extent = extent};
}

// Slices, pads, rolls, a flip and a join of a dim.
std::vector<Rearrangement> Cases(const Layout& layout, int dim, const Shape& shape) {
  const int64_t n = shape[dim];
  std::vector<DimRun> flipped;
  for (int64_t i = 0; i < n; ++i) flipped.push_back({0, i, n - 1 - i, 1});
  std::vector<Rearrangement> cases = {
      Along(layout, dim, shape, {{0, 1, 0, n - 2}}, n - 2),
      Along(layout, dim, shape, {{0, 0, 2, n}}, n + 3),
      Along(layout, dim, shape, Rolled(n, 1), n),
      Along(layout, dim, shape, Rolled(n, n / 2), n),
      Along(layout, dim, shape, flipped, n),
      Along(layout, dim, shape, {{0, 0, 0, n}, {1, 0, n, 3}}, n + 3),
  };
  Shape joined = shape;
  joined[dim] = 3;
  cases.back().sources.push_back({DType::kF32, joined});
  return cases;
}

struct Counts {
  std::vector<int64_t> num_bytes;  // by source
  int64_t worst = 0;
};

// Element by element of every rank's piece of the result: what its pieces of the sources lack.
Counts CountLacked(const Rearrangement& of, const DeviceMesh& mesh) {
  Counts counts = {.num_bytes = std::vector<int64_t>(of.sources.size(), 0)};
  for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
    const std::vector<int64_t> coordinate = mesh.CoordinateOf(rank);
    const ShardBox piece = LocalBox(of.ResultType().shape, of.layout, mesh, coordinate);
    if (piece.shape[of.dim] == 0) continue;
    const int64_t row_bytes = 4 * piece.shape.num_elements() / piece.shape[of.dim];
    int64_t lacked = 0;
    for (int64_t at = piece.offset[of.dim]; at < piece.offset[of.dim] + piece.shape[of.dim]; ++at) {
      for (const DimRun& run : of.runs) {
        if (at < run.to || at >= run.to + run.length) continue;
        const ShardBox held = LocalBox(of.sources[run.source].shape, of.layout, mesh, coordinate);
        const int64_t place = at - run.to + run.from - held.offset[of.dim];
        if (place >= 0 && place < held.shape[of.dim]) continue;
        counts.num_bytes[run.source] += row_bytes;
        lacked += row_bytes;
      }
    }
    counts.worst = std::max(counts.worst, lacked);
  }
  return counts;
}

TEST(RearrangementTest, BytesAreWhatPiecesLack) {
  struct Where {
    const char* mesh;
    const char* layout;
    int dim;
  };
  for (const Where& where :
       {Where{"a=2", "[a, -]", 0}, Where{"a=3", "[-, a]", 1}, Where{"a=2,b=2", "[a.b, -]", 0},
        Where{"a=2,b=3", "[b.a, -]", 0}, Where{"a=2,b=3", "[a, -]", 0}, Where{"a=3,b=2", "[a, b]", 0},
        Where{"a=8", "[a, -]", 0}, Where{"a=2,b=2", "[-, -]", 0}}) {
    const DeviceMesh mesh = DeviceMesh::Parse(where.mesh);
    for (int64_t extent : {2, 5, 8, 13}) {
      Shape shape = {4, 4};  // the other dim: pieces of one size
      shape[where.dim] = extent;
      for (const Rearrangement& of : Cases(Layout::Parse(where.layout, mesh), where.dim, shape)) {
        const std::string what =
            absl::StrCat(where.layout, " on ", where.mesh, ", ", extent, " to ", of.extent);
        const Counts counts = CountLacked(of, mesh);
        int64_t sent = 0, received = 0;
        for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
          const LoweredRearrangement lowered = Lower(of, mesh, mesh.CoordinateOf(rank));
          EXPECT_EQ(lowered.num_bytes, counts.num_bytes) << what;
          EXPECT_EQ(lowered.worst.bytes, counts.worst) << what;
          for (int64_t count : lowered.send_counts) sent += count * 4;
          for (int64_t count : lowered.receive_counts) received += count * 4;
        }
        int64_t all = 0;
        for (int64_t bytes : counts.num_bytes) all += bytes;
        EXPECT_EQ(sent, all) << what;
        EXPECT_EQ(received, all) << what;
      }
    }
  }
}

// Every member hands one row of four on: nothing may go through all pairs of a quarter of a million members.
TEST(RearrangementTest, ManyMembers) {
  constexpr int64_t kMembers = 1 << 18;
  const DeviceMesh mesh = DeviceMesh({{"dp", kMembers}});
  const Layout layout = Layout::Parse("[dp, -]", mesh);
  const LoweredRearrangement lowered =
      Lower(Along(layout, /*dim=*/0, {4 * kMembers, 2}, Rolled(4 * kMembers, 1), 4 * kMembers), mesh, {{5}});
  EXPECT_EQ(lowered.num_bytes, std::vector<int64_t>{kMembers * 2 * 4});
  EXPECT_EQ(lowered.worst.bytes, 2 * 4);
  EXPECT_EQ(lowered.send_counts[6], 2);
  EXPECT_EQ(lowered.receive_counts[4], 2);
}

}  // namespace
}  // namespace weft

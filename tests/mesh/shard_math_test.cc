#include "mesh/shard_math.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

TEST(ShardMathTest, ChunkTable) {
  const auto chunks = [](int64_t size, int64_t over) {
    std::vector<Range> result;
    for (int64_t i = 0; i < over; ++i) result.push_back(ChunkOf({0, size}, over, i));
    return result;
  };
  EXPECT_EQ(chunks(5, 4), (std::vector<Range>{{0, 2}, {2, 2}, {4, 1}, {5, 0}}));
  EXPECT_EQ(chunks(2, 4), (std::vector<Range>{{0, 1}, {1, 1}, {2, 0}, {2, 0}}));
  EXPECT_EQ(chunks(1, 2), (std::vector<Range>{{0, 1}, {1, 0}}));
  EXPECT_EQ(chunks(0, 2), (std::vector<Range>{{0, 0}, {0, 0}}));
  EXPECT_EQ(chunks(6, 1), (std::vector<Range>{{0, 6}}));
  EXPECT_EQ(ChunkOf({10, 5}, 2, 1), (Range{13, 2}));
}

// The piece of a dim of `extent` that axes of `sizes` split, outermost first, at `indices` along them.
Range NestedChunk(int64_t extent, const std::vector<int64_t>& sizes, const std::vector<int64_t>& indices) {
  std::vector<MeshAxis> axes;
  for (const int64_t size : sizes) axes.push_back({absl::StrCat("axis", axes.size()), size});
  Layout layout(/*ndim=*/1, static_cast<int>(axes.size()));
  for (size_t i = 0; i < axes.size(); ++i) layout = layout.WithShard(static_cast<int>(i), 0);
  const ShardBox box = LocalBox({extent}, layout, DeviceMesh(axes), indices);
  return {box.offset[0], box.shape[0]};
}

TEST(ShardMathTest, NestedTable) {
  const auto pieces = [](int64_t extent) {
    std::vector<Range> result;
    for (int64_t i = 0; i < 2; ++i) {
      for (int64_t j = 0; j < 2; ++j) result.push_back(NestedChunk(extent, {2, 2}, {i, j}));
    }
    return result;
  };
  EXPECT_EQ(pieces(5), (std::vector<Range>{{0, 2}, {2, 1}, {3, 1}, {4, 1}}));
  EXPECT_EQ(pieces(2), (std::vector<Range>{{0, 1}, {1, 0}, {1, 1}, {2, 0}}));
  EXPECT_EQ(pieces(1), (std::vector<Range>{{0, 1}, {1, 0}, {1, 0}, {1, 0}}));
  EXPECT_EQ(pieces(0), (std::vector<Range>{{0, 0}, {0, 0}, {0, 0}, {0, 0}}));
  EXPECT_EQ(NestedChunk(7, {}, {}), (Range{0, 7}));
}

// Cuts a list as torch.chunk does: by taking ceil(size / n) elements off its front until none are left.
std::vector<std::vector<int64_t>> NaiveChunks(const std::vector<int64_t>& list, int64_t n) {
  std::vector<std::vector<int64_t>> chunks(n);
  size_t chunk_size = 0;
  while (chunk_size * n < list.size()) ++chunk_size;
  for (size_t i = 0; i < list.size(); ++i) chunks[i / chunk_size].push_back(list[i]);
  return chunks;
}

// Against lists: the pieces tile the dim in order, and the inner pieces of an outer piece are exactly its
// chunks.
TEST(ShardMathTest, NestingAgreesWithLists) {
  for (int64_t extent = 0; extent <= 19; ++extent) {
    for (int64_t outer = 1; outer <= 5; ++outer) {
      for (int64_t inner = 1; inner <= 5; ++inner) {
        std::vector<int64_t> all(extent);
        for (int64_t i = 0; i < extent; ++i) all[i] = i;
        int64_t next = 0;
        const std::vector<std::vector<int64_t>> outer_chunks = NaiveChunks(all, outer);
        for (int64_t i = 0; i < outer; ++i) {
          const Range whole = NestedChunk(extent, {outer}, {i});
          EXPECT_EQ(whole.offset, next);
          EXPECT_EQ(whole.size, static_cast<int64_t>(outer_chunks[i].size()));
          const std::vector<std::vector<int64_t>> inner_chunks = NaiveChunks(outer_chunks[i], inner);
          for (int64_t j = 0; j < inner; ++j) {
            const Range piece = NestedChunk(extent, {outer, inner}, {i, j});
            EXPECT_EQ(piece.offset, next) << extent << " over " << outer << "x" << inner;
            EXPECT_EQ(piece.size, static_cast<int64_t>(inner_chunks[j].size()));
            if (!inner_chunks[j].empty()) {
              EXPECT_EQ(piece.offset, inner_chunks[j].front());
            }
            next += piece.size;
          }
          EXPECT_EQ(next, whole.offset + whole.size);
        }
        EXPECT_EQ(next, extent);
      }
    }
  }
}

TEST(ShardMathTest, LocalBoxes) {
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2, tp=2");
  const auto box = [&](absl::string_view layout, int rank) {
    return LocalBox({5, 3}, Layout::Parse(layout, mesh), mesh, mesh.CoordinateOf(rank));
  };
  EXPECT_EQ(box("[-, -]", 3), (ShardBox{{5, 3}, {0, 0}, {5, 3}}));
  EXPECT_EQ(box("[-, -] P{dp, tp}", 3), (ShardBox{{5, 3}, {0, 0}, {5, 3}}));
  EXPECT_EQ(box("[dp, tp]", 1), (ShardBox{{5, 3}, {0, 2}, {3, 1}}));
  EXPECT_EQ(box("[dp, tp]", 2), (ShardBox{{5, 3}, {3, 0}, {2, 2}}));
  EXPECT_EQ(box("[dp.tp, -]", 1), (ShardBox{{5, 3}, {2, 0}, {1, 3}}));
  EXPECT_EQ(box("[tp.dp, -]", 1), (ShardBox{{5, 3}, {3, 0}, {1, 3}}));  // tp = 1, dp = 0
  EXPECT_EQ(box("[-, dp.tp]", 3), (ShardBox{{5, 3}, {0, 3}, {5, 0}}));
  EXPECT_EQ(LocalBox({}, Layout::Parse("[]", mesh), mesh, {1, 1}), (ShardBox{{}, {}, {}}));
}

// Over random layouts: every element lies on as many ranks as its unsplit axes have, and no piece exceeds the
// maximum.
TEST(ShardMathTest, BoxesCoverEveryElementEquallyOften) {
  std::mt19937 draw(7);
  const DeviceMesh mesh = DeviceMesh::Parse("a=2, b=3, c=1, d=2");
  for (int round = 0; round < 300; ++round) {
    Layout layout(2, 4);
    int64_t copies = 1;
    std::vector<int> axes = {0, 1, 2, 3};
    std::shuffle(axes.begin(), axes.end(), draw);
    for (int axis : axes) {
      const int choice = static_cast<int>(draw() % 4);
      if (choice < 2) {
        layout = layout.WithShard(axis, choice);
        continue;
      }
      if (choice == 3) layout = layout.WithPartial(axis);
      copies *= mesh.axis_size(axis);
    }
    const Shape shape = {static_cast<int64_t>(draw() % 8), static_cast<int64_t>(draw() % 8)};
    std::vector<int64_t> count(shape.num_elements());
    int64_t largest = 0;
    for (int rank : mesh.ranks()) {
      const ShardBox box = LocalBox(shape, layout, mesh, mesh.CoordinateOf(rank));
      largest = std::max(largest, box.shape.num_elements());
      for (int64_t i = 0; i < box.shape[0]; ++i) {
        for (int64_t j = 0; j < box.shape[1]; ++j) {
          ++count.at((box.offset[0] + i) * shape[1] + box.offset[1] + j);
        }
      }
    }
    EXPECT_EQ(count, std::vector<int64_t>(count.size(), copies)) << shape << " " << layout;
    EXPECT_EQ(MaxLocalElements(shape, layout, mesh), largest) << shape << " " << layout;
  }
}

TEST(ShardMathTest, MisuseIsNamed) {
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2, tp=2");
  const auto message = [&](const Shape& shape, const Layout& layout, const std::vector<int64_t>& coordinate) {
    try {
      LocalBox(shape, layout, mesh, coordinate);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
      return error.message();
    }
    return std::string("nothing was thrown");
  };
  EXPECT_EQ(message({5, 3}, Layout::Parse("[dp]", mesh), {0, 0}),
            "layout [dp] has 1 dims, but the tensor's shape is [5, 3]");
  EXPECT_EQ(message({5, 3}, Layout(2, 1), {0, 0}),
            "layout [-, -] is for 1 mesh axes, but mesh (dp=2, tp=2) has 2");
  EXPECT_EQ(message({5, 3}, Layout(2, 2), {0}), "a coordinate in mesh (dp=2, tp=2) needs 2 indices, got 1");
  EXPECT_EQ(message({5, 3}, Layout(2, 2), {0, 2}), "index 2 is outside mesh axis 'tp' of size 2");
  EXPECT_EQ(message({5, 3}, Layout(2, 2), {-1, 0}), "index -1 is outside mesh axis 'dp' of size 2");
}

}  // namespace
}  // namespace weft

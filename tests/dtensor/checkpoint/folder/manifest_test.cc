#include "dtensor/checkpoint/folder/manifest.h"

#include <map>
#include <string>

#include "dtensor/checkpoint/folder/step_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/crc32c.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using testing::HasSubstr;

Manifest Example() {
  const DeviceMesh mesh = DeviceMesh::Parse("pp=2, dp=2");
  Manifest manifest;
  manifest.weft = "0.1.0";
  manifest.step = 100;
  manifest.generation = 2;
  manifest.world = 5;
  manifest.parts = {"model", "run"};
  manifest.tensors["a"] = {{DType::kF32, {5, 3}}, mesh, Layout(2, 2).WithShard(1, 0).WithShard(0, 0)};
  manifest.tensors["b"] = {{DType::kBF16, {4}}, mesh.Slice({{"pp", 1}}), Layout(1, 2).WithShard(1, 0)};
  manifest.tensors["c"] = {{DType::kI64, {}}, DeviceMesh({{"x", 2}}, {4, 1}), Layout(0, 1)};
  manifest.files["rank-00004.safetensors"] = {123, 0xabcdef01};
  manifest.refers_to = {10, 90};
  manifest.texts["flags"] = "{\"a\":\"b\"}";
  return manifest;
}

std::string Signed(const std::string& rest) {
  return "{\"crc32c\":\"" + CrcText(Crc32c(rest)) + "\"," + rest;
}

TEST(ManifestTest, ReadsWhatItWrites) {
  EXPECT_EQ(ParseManifest("m", FormatManifest(Example())), Example());
  EXPECT_EQ(ParseManifest("m", FormatManifest(Manifest())), Manifest());
}

// Its size goes by the tensors, and a line per file.
TEST(ManifestTest, IsSmallWhateverTheNumberOfRanks) {
  const auto size_for = [](int ranks) {
    Manifest manifest;
    manifest.world = ranks;
    const DeviceMesh mesh({{"dp", ranks}});
    for (int i = 0; i < 100; ++i) {
      manifest.tensors["blocks." + std::to_string(i)] = {
          {DType::kF32, {4096, 4096}}, mesh, Layout(2, 1).WithShard(0, 0)};
    }
    for (int rank = 0; rank < ranks; ++rank) manifest.files[RankFileName(rank)] = {1 << 30, 1};
    return std::ssize(FormatManifest(manifest));
  };
  EXPECT_LT(size_for(1000) - size_for(2), 998 * 80);
}

TEST(ManifestTest, Errors) {
  const std::string good = FormatManifest(Example());
  const auto error = [](const std::string& text) { return MessageOf([&] { ParseManifest("m", text); }); };
  EXPECT_EQ(error(""), "'m' is not a whole manifest: it does not begin with its checksum");
  EXPECT_THAT(error(good.substr(0, good.size() - 3)),
              HasSubstr("'m' is not a whole manifest: its checksum is"));
  EXPECT_THAT(error(Signed("\"format\":1}")), HasSubstr("lacks a field"));
  EXPECT_THAT(error(Signed("[")), HasSubstr("not a JSON object"));
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string rest = good.substr(21);
    const size_t at = rest.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return error(Signed(rest.replace(at, from.size(), to)));
  };
  EXPECT_EQ(changed("\"format\":1", "\"format\":9"), "'m' is of format 9; this Weft reads formats up to 1");
  EXPECT_THAT(changed("\"world\":5", "\"world\":3"), HasSubstr("has more ranks than the world, 3"));
  EXPECT_THAT(changed("\"world\":5", "\"world\":4"), HasSubstr("a mesh has the rank 4, the world has 4"));
  EXPECT_THAT(changed("rank-00004", "rank-00005"),
              HasSubstr("file 'rank-00005.safetensors' of a world of 5"));
  EXPECT_THAT(changed("rank-00004", "../k-00004"), HasSubstr("file '../k-00004.safetensors'"));
  EXPECT_THAT(changed("[5,3]", "[5,-3]"), HasSubstr("an extent of -3"));
  EXPECT_THAT(changed("[5,3]", "[4611686018427387904,3]"), HasSubstr("too large"));
  EXPECT_THAT(changed("[5,3]", "[5]"), HasSubstr("'m' is not a whole manifest: "));
  EXPECT_THAT(changed("\"F32\"", "\"F31\""), HasSubstr("unknown dtype F31"));
  EXPECT_THAT(changed("\"F32\"", "\"I16\""), HasSubstr("'m': a tensor has the dtype I16, which Weft lacks"));
}

// Each mesh may come to make a list of its ranks: 64 MB here.
TEST(ManifestTest, MeshesOfTooManyRanksAreRefused) {
  const auto error_of = [](int num_meshes) {
    std::string meshes;
    for (int i = 0; i < num_meshes; ++i) {
      meshes += std::string(i == 0 ? "" : ",") + "{\"axes\":\"a=16777216\"}";
    }
    std::string rest = FormatManifest(Manifest()).substr(21);
    for (const auto& [from, to] : std::map<std::string, std::string>{
             {"\"meshes\":[]", "\"meshes\":[" + meshes + "]"}, {"\"world\":1", "\"world\":16777216"}}) {
      rest.replace(rest.find(from), from.size(), to);
    }
    return MessageOf([&] { ParseManifest("m", Signed(rest)); });
  };
  EXPECT_EQ(error_of(4), "no error");
  EXPECT_EQ(error_of(5), "'m' is not a whole manifest: its meshes have more than 67108864 ranks together");
}

TEST(ManifestTest, NamesOfSteps) {
  EXPECT_EQ(StepName(100), "step-000000100");
  EXPECT_EQ(ParseStepName("step-000000100"), 100);
  EXPECT_EQ(ParseStepName(StepName(12345678901)), 12345678901);
  for (const char* name :
       {"step-100", "step-000000100.2.tmp", "step--00000001", "latest", "step-", "step-00000010x"}) {
    EXPECT_EQ(ParseStepName(name), std::nullopt) << name;
  }
  EXPECT_EQ(TemporaryStepName(100, 2, ""), "step-000000100.2.tmp");
  EXPECT_EQ(TemporaryStepName(100, 2, "1a2b"), "step-000000100.2-1a2b.tmp");
  EXPECT_TRUE(IsTemporaryStepName("step-000000100.2.tmp"));
  EXPECT_TRUE(IsTemporaryStepName("step-000000100.2-1a2b.tmp"));
  for (const char* name : {"step-000000100.broken", "step-000000100.broken-2"}) {
    EXPECT_TRUE(IsBrokenStepName(name));
    EXPECT_FALSE(IsTemporaryStepName(name));
    EXPECT_EQ(ParseStepName(name), std::nullopt);
  }
  EXPECT_FALSE(IsBrokenStepName("step-000000100"));
  EXPECT_FALSE(IsBrokenStepName("notes.broken"));
  EXPECT_FALSE(IsTemporaryStepName("step-000000100"));
}

// Exactly one rank saves each element: by the table of tensor_place.h, and for nested, uneven and empty boxes.
TEST(ManifestTest, OwnersOfBoxes) {
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2, tp=2");
  const auto owners = [&](const Shape& shape, const Layout& layout) {
    std::string text;
    const TensorPlace place = {{DType::kF32, shape}, mesh, layout};
    for (const OwnedBox& owned : OwnedBoxes(place)) {
      text += std::to_string(owned.rank) + ":" + std::to_string(owned.box.offset[0]) + "+" +
              std::to_string(owned.box.shape[0]) + " ";
    }
    for (int rank = 0; rank < 4; ++rank) {
      const auto own = BoxOwnedBy(place, rank);
      const auto prefix = std::to_string(rank) + ":";
      EXPECT_EQ(own.has_value(), (" " + text).find(" " + prefix) != std::string::npos);
    }
    return text;
  };
  EXPECT_EQ(owners({5}, Layout(1, 2).WithShard(1, 0)), "0:0+3 1:3+2 ");
  EXPECT_EQ(owners({5}, Layout(1, 2).WithShard(0, 0)), "0:0+3 2:3+2 ");
  EXPECT_EQ(owners({5}, Layout(1, 2)), "0:0+5 ");
  EXPECT_EQ(owners({5}, Layout(1, 2).WithShard(1, 0).WithShard(0, 0)), "0:0+2 1:3+1 2:2+1 3:4+1 ");
  EXPECT_EQ(owners({1}, Layout(1, 2).WithShard(0, 0)), "0:0+1 ");
  EXPECT_EQ(owners({0}, Layout(1, 2).WithShard(0, 0)), "");
}

}  // namespace
}  // namespace weft

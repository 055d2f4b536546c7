// Manifests and headers that have been changed at random: nothing crashes, and what is wrong is an error that names the
// file. 10,000 mutations in all, of a seed; more by --gtest_repeat with another GTEST_RANDOM_SEED.

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "dtensor/checkpoint/folder/manifest.h"
#include "dtensor/checkpoint/folder/piece_file.h"
#include "dtensor/checkpoint/folder/step_folder.h"
#include "dtensor/checkpoint/folder/step_reader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"
#include "runtime/device/allocator.h"
#include "tests/dtensor/checkpoint/files/crash_files.h"

namespace weft {
namespace {

constexpr char kFolder[] = "runs";
constexpr char kManifest[] = "runs/step-000000005/manifest.json";

// Two ranks, a tensor that they split, one that the first has, one that refers to step 3; a stage's slice.
std::shared_ptr<CrashFiles> MakeStep() {
  const auto files = std::make_shared<CrashFiles>();
  MakeFolders(*files, "runs/step-000000003");
  MakeFolders(*files, "runs/step-000000005");
  WriteText(*files, "runs/step-000000003/rank-00000.safetensors", std::string(64, 'x'));
  const DeviceMesh mesh = DeviceMesh::Parse("pp=2, dp=2");
  const DeviceMesh stage = mesh.Slice({{"pp", 1}});
  Manifest manifest;
  manifest.weft = "0.1.0";
  manifest.step = 5;
  manifest.world = 4;
  manifest.parts = {"model"};
  manifest.refers_to = {3};
  manifest.texts = {{"flags", "{\"a\": \"b\"}"}};
  manifest.tensors["split"] = {{DType::kF32, {5, 2}}, stage, Layout(2, 2).WithShard(1, 0)};
  manifest.tensors["whole"] = {{DType::kI64, {3}}, mesh, Layout(1, 2)};
  manifest.tensors["old"] = {{DType::kU8, {8}}, mesh, Layout(1, 2)};
  std::vector<std::vector<PieceToSave>> pieces(4);
  for (const auto& [name, place] : manifest.tensors) {
    for (const OwnedBox& owned : OwnedBoxes(place)) {
      PieceToSave& piece = pieces[owned.rank].emplace_back();
      piece.name = name;
      piece.record.dtype = place.type.dtype;
      piece.record.box = owned.box;
      piece.elements = Tensor::Empty(MakeCpuAllocator(), place.type.dtype, owned.box.shape);
      std::memset(piece.elements.data(), 'x', static_cast<size_t>(piece.elements.num_bytes()));
      if (name != "old") continue;
      piece.record.crc32c = Crc32c(std::string(8, 'x'));
      piece.record.at = {3, "rank-00000.safetensors", 16};
    }
  }
  for (int rank = 0; rank < 4; ++rank) {
    if (pieces[rank].empty()) continue;
    const WrittenPieces written = WritePieces(*files, "runs/step-000000005/" + RankFileName(rank),
                                              pieces[rank], {.step = 5, .rank = rank});
    manifest.files[RankFileName(rank)] = {written.num_bytes, written.header_crc32c};
  }
  WriteText(*files, kManifest, FormatManifest(manifest));
  return files;
}

// Reads all of it. Errors are weft::Errors that name something of the folder.
bool ReadsWell(const std::shared_ptr<CrashFiles>& files) {
  StepVerdict verdict;
  try {
    FindLatestStep(*files, kFolder);
    verdict = VerifyStep(*files, kFolder, 5);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kUnimplemented);  // of a newer format, as a manifest says
    EXPECT_THAT(error.message(), testing::HasSubstr("runs/step-0000000"));
    return false;
  }
  for (const std::string& problem : verdict.problems)
    EXPECT_THAT(problem, testing::HasSubstr("runs/step-0000000"));
  try {
    StepReader reader(files, kFolder, 5);
    for (const std::string& name : reader.Names()) {
      const Shape& shape = reader.Find(name)->shape;
      if (shape.num_elements() > 1 << 20) continue;  // what a changed manifest may say
      reader.Read(name, WholeBox(shape), MakeCpuAllocator());
    }
  } catch (const Error& error) {
    EXPECT_FALSE(error.message().empty());
    return false;
  }
  return verdict.problems.empty();
}

// A byte that is another, goes, or is there twice; a digit that is another; a piece of the text that stands elsewhere, or
// is gone.
std::string Mutate(std::string text, std::mt19937_64& random) {
  const int count = 1 + static_cast<int>(random() % 3);
  for (int i = 0; i < count && !text.empty(); ++i) {
    const size_t at = random() % text.size();
    const size_t length = std::min<size_t>(text.size() - at, random() % 24);
    switch (random() % 6) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, 1);
        break;
      case 2:
        text.insert(at, 1, "0123456789-\"{}[],:"[random() % 18]);
        break;
      case 3: {
        const size_t digit = text.find_first_of("0123456789", at);
        if (digit != std::string::npos) text[digit] = static_cast<char>('0' + random() % 10);
        break;
      }
      case 4:
        text.insert(random() % text.size(), text.substr(at, length));
        break;
      default:
        text.erase(at, length);
    }
  }
  return text;
}

constexpr int kMutations = 5000;

TEST(FuzzTest, TheStepItselfIsWhole) {
  EXPECT_THAT(VerifyStep(*MakeStep(), kFolder, 5).problems, testing::IsEmpty());
  EXPECT_TRUE(ReadsWell(MakeStep()));
}

TEST(FuzzTest, Manifests) {
  const auto files = MakeStep();
  const std::string good = files->BytesOf(kManifest);
  const std::string rest = good.substr(std::string("{\"crc32c\":\"00000000\",").size());
  std::mt19937_64 random(7 + testing::UnitTest::GetInstance()->random_seed());
  int num_parsed = 0;
  for (int i = 0; i < kMutations; ++i) {
    // Every other one with the checksum that it should have, so that what comes behind that is reached.
    const bool is_signed = i % 2 == 0;
    std::string bad;
    if (is_signed) {
      const std::string changed = Mutate(rest, random);
      bad = "{\"crc32c\":\"" + CrcText(Crc32c(changed)) + "\"," + changed;
    } else {
      bad = Mutate(good, random);
      if (bad == good) continue;
    }
    files->Replace(kManifest, bad);
    const bool well = ReadsWell(files);
    num_parsed += well;
    EXPECT_FALSE(!is_signed && well) << bad;
  }
  EXPECT_GT(num_parsed, 10);  // some changes change a text, or a number that nothing hangs on
}

TEST(FuzzTest, Headers) {
  const std::string path = "runs/step-000000005/rank-00000.safetensors";
  const auto files = MakeStep();
  const std::string good = files->BytesOf(path);
  const Manifest manifest = ReadManifest(*files, kFolder, 5);
  uint64_t length = 0;
  std::memcpy(&length, good.data(), sizeof(length));
  std::mt19937_64 random(8 + testing::UnitTest::GetInstance()->random_seed());
  for (int i = 0; i < kMutations; ++i) {
    std::string header = Mutate(good.substr(8, length), random);
    uint64_t said = i % 4 == 3 ? random() >> random() % 64 : header.size();
    std::string bad(reinterpret_cast<const char*>(&said), sizeof(said));
    bad += header + good.substr(8 + length);
    if (i % 5 == 4) bad.resize(random() % bad.size());
    if (bad == good) continue;
    files->Replace(path, bad);
    // Half of them with the checksum in the manifest that they should have.
    Manifest changed = manifest;
    if (i % 2 == 0) {
      changed.files[RankFileName(0)] = {std::ssize(bad),
                                        Crc32c(absl::string_view(bad).substr(0, 8 + header.size()))};
    }
    files->Replace(kManifest, FormatManifest(changed));
    const bool well = ReadsWell(files);
    EXPECT_FALSE(i % 2 == 1 && well) << bad;
  }
}

}  // namespace
}  // namespace weft

// Which steps are broken, and which cannot be read alone.

#include "dtensor/checkpoint/folder/step_folder.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "dtensor/checkpoint/folder/manifest.h"
#include "dtensor/checkpoint/folder/piece_file.h"
#include "dtensor/checkpoint/folder/step_reader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"
#include "runtime/device/allocator.h"
#include "runtime/tensor/tensor.h"
#include "tests/dtensor/checkpoint/files/crash_files.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kFolder[] = "runs";
constexpr char kManifest[] = "runs/step-000000001/manifest.json";
constexpr char kFile[] = "runs/step-000000001/rank-00000.safetensors";

// A step of `world` ranks: one tensor with an element for each of them. Only rank 0 has a file.
std::shared_ptr<CrashFiles> MakeStep(int world) {
  const auto files = std::make_shared<CrashFiles>();
  MakeFolders(*files, "runs/step-000000001");
  PieceToSave piece;
  piece.name = "t";
  piece.record.dtype = DType::kU8;
  piece.record.box = {{world}, {0}, {1}};
  piece.elements = Tensor::FromValues<uint8_t>({1}, {7});
  const WrittenPieces written = WritePieces(*files, kFile, {piece}, {.step = 1, .world = world});
  Manifest manifest;
  manifest.step = 1;
  manifest.world = world;
  manifest.tensors["t"] = {.type = TensorType{DType::kU8, {world}},
                           .mesh = DeviceMesh({{"dp", world}}),
                           .layout = Layout(1, 1).WithShard(0, 0)};
  manifest.files[RankFileName(0)] = {written.num_bytes, written.header_crc32c};
  WriteText(*files, kManifest, FormatManifest(manifest));
  return files;
}

TEST(StepFolderTest, ADtypeThatWeftLacksIsNotBroken) {
  const auto files = MakeStep(1);
  EXPECT_THAT(InspectStep(*files, kFolder, 1).problems, IsEmpty());
  std::string bytes = files->BytesOf(kFile);
  for (size_t at = bytes.find("U8"); at != std::string::npos; at = bytes.find("U8")) bytes[at] = 'I';
  files->Replace(kFile, bytes);
  EXPECT_THAT(InspectStep(*files, kFolder, 1).problems,
              ElementsAre(HasSubstr("its header has the checksum")));  // it is another than was written
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  Manifest manifest = ReadManifest(*files, kFolder, 1);
  manifest.files[RankFileName(0)].header_crc32c = Crc32c(absl::string_view(bytes).substr(0, 8 + length));
  files->Replace(kManifest, FormatManifest(manifest));
  try {
    FindLatestStep(*files, kFolder);
    FAIL() << "a tensor of I8 is read";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(error.message(), HasSubstr("'runs/step-000000001/rank-00000.safetensors': a tensor has the "
                                           "dtype I8, which Weft lacks"));
  }
}

// A manifest of a few bytes may say that there are millions of boxes.
TEST(StepFolderTest, NobodyListsMoreBoxesThanThereAreFiles) {
  constexpr int kWorld = 1 << 24;
  const auto files = MakeStep(kWorld);
  EXPECT_THAT(InspectStep(*files, kFolder, 1).problems,
              ElementsAre(HasSubstr("rank-00001.safetensors' lacks the box of tensor 't'")));
  StepReader reader(files, kFolder, 1);
  EXPECT_EQ(MessageOf([&] { reader.Read("t", WholeBox({kWorld}), MakeCpuAllocator()); }),
            "'runs/step-000000001': tensor 't' lies in more files than the 1 that the manifest names");
}

}  // namespace
}  // namespace weft

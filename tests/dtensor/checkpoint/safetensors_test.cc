#include "dtensor/checkpoint/safetensors.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "tests/message_of.h"

namespace {

// Which folders were flushed to disk; and whether to do that fails.
std::vector<ino_t> flushed_folders;
bool flushing_folders_fails = false;

}  // namespace

// Stands before libc's, which it calls.
extern "C" int fsync(int file) {
  struct stat status;
  if (fstat(file, &status) == 0 && S_ISDIR(status.st_mode)) {
    if (flushing_folders_fails) {
      errno = EIO;
      return -1;
    }
    flushed_folders.push_back(status.st_ino);
  }
  return static_cast<int>(syscall(SYS_fsync, file));
}

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string TestPath(const std::string& name) { return ::testing::TempDir() + "/" + name; }

Tensor Counting(const Shape& shape) {
  std::vector<float> values(shape.num_elements());
  std::iota(values.begin(), values.end(), 0.f);
  return Tensor::FromValues<float>(shape, values);
}

std::string WriteText(const std::string& name, const std::string& text) {
  const std::string path = TestPath(name);
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

// Eight length bytes, a header, some data.
std::string FileOf(const std::string& header, int64_t data_bytes) {
  std::string file(8, '\0');
  for (int i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  return file + header + std::string(static_cast<size_t>(data_bytes), 'x');
}

std::string ErrorOf(const std::string& path) {
  try {
    SafetensorsReader reader(path);
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

TEST(SafetensorsTest, FileIsTheDocumentedBytes) {
  const std::string path = TestPath("bytes.safetensors");
  SafetensorsWriter writer(path, {{"a", {DType::kU8, {2}}}}, {});
  writer.Write(Tensor::FromValues<uint8_t>({2}, std::vector<uint8_t>{7, 9}));
  writer.Finish();
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const std::string header = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(bytes, FileOf(padded, 0) + "\x07\x09");
}

TEST(SafetensorsTest, RoundTripOfEveryDtypeAndEmptyTensors) {
  const std::string path = TestPath("dtypes.safetensors");
  std::vector<SafetensorsEntry> entries;
  for (DType dtype : kAllDTypes) entries.push_back({std::string(DTypeName(dtype)), {dtype, {3}}});
  entries.push_back({"empty", {DType::kF64, {0, 4}}});
  entries.push_back({"scalar", {DType::kF32, {}}});
  SafetensorsWriter writer(path, entries, {{"key", "va\"lue"}});
  const auto allocator = MakeCpuAllocator();
  std::vector<Tensor> written;
  for (const SafetensorsEntry& entry : entries) {
    const Tensor tensor = Tensor::Empty(allocator, entry.type.dtype, entry.type.shape);
    for (int64_t i = 0; i < tensor.num_bytes(); ++i)
      static_cast<char*>(tensor.data())[i] = static_cast<char>(i % 2);
    written.push_back(tensor);
    writer.Write(tensor);
  }
  writer.Finish();
  SafetensorsReader reader(path);
  EXPECT_EQ(reader.metadata(), (SafetensorsMetadata{{"key", "va\"lue"}}));
  EXPECT_EQ(reader.entries().size(), entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    ASSERT_NE(reader.Find(entries[i].name), nullptr);
    EXPECT_EQ(*reader.Find(entries[i].name), entries[i].type);
    const Tensor read = reader.Read(entries[i].name, WholeBox(entries[i].type.shape), allocator);
    EXPECT_EQ(read.ToVector<double>(), written[i].ToVector<double>()) << entries[i].name;
  }
  EXPECT_EQ(reader.Find("other"), nullptr);
}

TEST(SafetensorsTest, ReadsBoxes) {
  const std::string path = TestPath("boxes.safetensors");
  const Tensor whole = Counting({3, 4, 5});
  SafetensorsWriter writer(path, {{"first", {DType::kF32, {1}}}, {"w", {DType::kF32, {3, 4, 5}}}}, {});
  writer.Write(Counting({1}));
  writer.Write(whole);
  writer.Finish();
  SafetensorsReader reader(path);
  const auto allocator = MakeCpuAllocator();
  for (const auto& [offset, shape] : std::vector<std::pair<Shape, Shape>>{{{0, 0, 0}, {3, 4, 5}},
                                                                          {{1, 0, 0}, {2, 4, 5}},
                                                                          {{0, 1, 0}, {3, 2, 5}},
                                                                          {{1, 1, 2}, {2, 3, 2}},
                                                                          {{2, 3, 4}, {1, 1, 1}},
                                                                          {{3, 0, 0}, {0, 4, 5}}}) {
    const Tensor read = reader.Read("w", {{3, 4, 5}, offset, shape}, allocator);
    Tensor expected = whole;
    for (int dim = 0; dim < 3; ++dim) expected = expected.Slice(dim, offset[dim], shape[dim]);
    EXPECT_EQ(read.ToVector<float>(), expected.ToVector<float>()) << offset << " " << shape;
  }
}

TEST(SafetensorsTest, UnfinishedFileLeavesTheOldOne) {
  const std::string path = WriteText("old.safetensors", "old");
  {
    SafetensorsWriter writer(path, {{"a", {DType::kF32, {1}}}}, {});
    EXPECT_THAT([&] { writer.Finish(); },
                ::testing::ThrowsMessage<Error>(HasSubstr("1 tensors are not written")));
  }
  std::ifstream file(path);
  EXPECT_EQ(std::string((std::istreambuf_iterator<char>(file)), {}), "old");
  EXPECT_NE(access((path + ".tmp").c_str(), F_OK), 0);
}

// 101 MiB of a text: more than the 100 MiB that a reader takes for a header.
TEST(SafetensorsTest, AHeaderThatNobodyReadsIsNotWritten) {
  const std::string path = WriteText("large.safetensors", "old");
  EXPECT_THAT(
      [&] {
        SafetensorsWriter(path, {}, {{"t", std::string(101 << 20, 'a')}});
      },
      ::testing::ThrowsMessage<Error>(HasSubstr("large.safetensors': a header of 105906208 bytes")));
  std::ifstream file(path);
  EXPECT_EQ(std::string((std::istreambuf_iterator<char>(file)), {}), "old");
  EXPECT_NE(access((path + ".tmp").c_str(), F_OK), 0);
}

// JSON, and so a header, holds nothing else.
TEST(SafetensorsTest, NamesAndTextsThatAreNotUtf8AreRefused) {
  const std::string path = WriteText("utf8.safetensors", "old");
  const auto message_of = [&](const std::string& name, const SafetensorsMetadata& metadata) {
    return MessageOf([&] { SafetensorsWriter(path, {{name, {DType::kF32, {1}}}}, metadata); });
  };
  EXPECT_EQ(message_of("gr\xfc\xdf", {}),
            "checkpoint '" + path +
                "': the name of tensor 'gr\\xfc\\xdf' is not UTF-8, which alone a header holds");
  const std::string of_text = "is not UTF-8, which alone a header holds";
  EXPECT_THAT(message_of("a", {{"k\xff", "v"}}), HasSubstr("the name of text 'k\\xff' " + of_text));
  EXPECT_THAT(message_of("a", {{"k", "\xc3"}}), HasSubstr("text 'k' " + of_text));
  std::ifstream file(path);
  EXPECT_EQ(std::string((std::istreambuf_iterator<char>(file)), {}), "old");
  EXPECT_NE(access((path + ".tmp").c_str(), F_OK), 0);
  EXPECT_EQ(message_of("gr\xc3\xbc\xc3\x9f", {{"gr\xc3\xbc\xc3\x9f", "\xf0\x9f\x9a\x80"}}), "no error");
}

// What a killed process has left is written over; what a living one writes is not.
TEST(SafetensorsTest, OneWriterAtATime) {
  const std::string path = TestPath("one.safetensors");
  WriteText("one.safetensors.tmp", std::string(1000, 'x'));
  const std::vector<SafetensorsEntry> entries = {{"a", {DType::kF32, {1}}}};
  SafetensorsWriter writer(path, entries, {});
  EXPECT_THAT([&] { SafetensorsWriter(path, entries, {}); },
              ::testing::ThrowsMessage<Error>(HasSubstr("one.safetensors': another process is writing it")));
  writer.Write(Counting({1}));
  writer.Finish();
  EXPECT_NE(access((path + ".tmp").c_str(), F_OK), 0);
  EXPECT_EQ(SafetensorsReader(path).Read("a", WholeBox({1}), MakeCpuAllocator()).ToVector<float>(),
            std::vector<float>{0});
  SafetensorsWriter again(path, entries, {});
  again.Write(Counting({1}));
  again.Finish();
}

// A folder of a test's own.
std::filesystem::path NewFolder(const std::string& name) {
  const std::filesystem::path folder = TestPath(name);
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

TEST(SafetensorsTest, AConstructorThatThrowsLeavesNoFile) {
  const std::filesystem::path folder = NewFolder("throws");
  EXPECT_THROW(SafetensorsWriter(folder / "x.safetensors", {{"a", {}}, {"a", {}}}, {}), Error);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

// A rename is on disk when its folder is.
TEST(SafetensorsTest, FinishFlushesTheFolder) {
  const std::filesystem::path folder = NewFolder("flushed");
  struct stat status;
  ASSERT_EQ(stat(folder.c_str(), &status), 0);
  flushed_folders.clear();
  SafetensorsWriter(folder / "x.safetensors", {}, {}).Finish();
  EXPECT_THAT(flushed_folders, ElementsAre(status.st_ino));
  // A path without a folder lies in the working folder.
  ASSERT_EQ(stat(".", &status), 0);
  flushed_folders.clear();
  SafetensorsWriter("x.safetensors", {}, {}).Finish();
  EXPECT_THAT(flushed_folders, ElementsAre(status.st_ino));
  std::filesystem::remove("x.safetensors");
  flushing_folders_fails = true;
  EXPECT_THAT([&] { SafetensorsWriter(folder / "y.safetensors", {}, {}).Finish(); },
              ::testing::ThrowsMessage<Error>(HasSubstr("y.safetensors': Input/output error")));
  flushing_folders_fails = false;
}

// Root's /dev/null would be a file from then on.
TEST(SafetensorsTest, WhatIsNoFileIsNotReplaced) {
  const std::filesystem::path folder = NewFolder("no_file");
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink("pipe", folder / "link");
  std::filesystem::create_directory(folder / "stands");
  const auto write = [](const std::string& path) { SafetensorsWriter(path, {}, {}).Finish(); };
  for (const char* const name : {"pipe", "link"}) {
    const std::string path = folder / name;
    EXPECT_EQ(MessageOf([&] { write(path); }),
              "cannot write '" + path + "': expected a file, got a device, a pipe or a socket");
  }
  EXPECT_EQ(MessageOf([&] { write(folder / "stands"); }),
            "cannot write '" + (folder / "stands").string() + "': expected a file, got a folder");
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 3);
}

TEST(SafetensorsTest, WriterRefusesWhatWasNotAnnounced) {
  const std::string path = TestPath("refused.safetensors");
  EXPECT_THAT(
      [&] {
        SafetensorsWriter(path, {{"a", {}}, {"a", {}}}, {});
      },
      ::testing::ThrowsMessage<Error>(HasSubstr("tensor 'a' stands twice")));
  SafetensorsWriter writer(path, {{"a", {DType::kF32, {2}}}}, {});
  EXPECT_THAT([&] { writer.Write(Counting({3})); },
              ::testing::ThrowsMessage<Error>(HasSubstr("tensor 'a' is f32[2], got f32[3]")));
  EXPECT_THAT([&] { SafetensorsWriter(TestPath("no/such/folder"), {}, {}); },
              ::testing::ThrowsMessage<Error>(HasSubstr("cannot write")));
}

TEST(SafetensorsTest, BrokenFilesAreNamedAndExplained) {
  EXPECT_THAT(ErrorOf(TestPath("missing")), HasSubstr("cannot read"));
  EXPECT_THAT(ErrorOf(WriteText("short", "abc")), HasSubstr("it has 3 bytes"));
  EXPECT_THAT(ErrorOf(WriteText("long", std::string(8, '\x7f') + "{}")), HasSubstr("its header would be"));
  EXPECT_THAT(ErrorOf(WriteText("json", FileOf("[1, 2", 0))), HasSubstr("not a JSON object"));
  EXPECT_THAT(ErrorOf(WriteText("field", FileOf(R"({"a":{"dtype":"F32"}})", 4))), HasSubstr("lacks a field"));
  EXPECT_THAT(
      ErrorOf(WriteText("dtype", FileOf(R"({"a":{"dtype":"F9","shape":[1],"data_offsets":[0,4]}})", 4))),
      HasSubstr("unknown dtype F9"));
  EXPECT_THAT(
      ErrorOf(WriteText("size", FileOf(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4))),
      HasSubstr("tensor 'a', f32[2], cannot lie in bytes 0 to 4"));
  EXPECT_THAT(ErrorOf(WriteText("negative",
                                FileOf(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,-4]}})", 0))),
              HasSubstr("an extent of -1"));
  EXPECT_THAT(
      ErrorOf(WriteText("cut", FileOf(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7))),
      HasSubstr("its tensors take 8 bytes, it has 7"));
  EXPECT_THAT(
      ErrorOf(WriteText(
          "dims", FileOf(R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})", 4))),
      HasSubstr("at most 8 dims"));
}

// By the processor's time, so that a busy machine changes little.
TEST(SafetensorsTest, ManyNamesAreReadInATimeThatGrowsWithThem) {
  const auto seconds = [](int count) {
    std::string header = "{";
    for (int i = 0; i < count; ++i) {
      header += (i == 0 ? "" : ",") + ("\"blocks." + std::to_string(i)) +
                R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
    }
    const std::string path = WriteText("many", FileOf(header + "}", 0));
    const std::clock_t begun = std::clock();
    const SafetensorsReader reader(path);
    EXPECT_EQ(std::ssize(reader.entries()), count);
    for (const SafetensorsEntry& entry : reader.entries()) EXPECT_NE(reader.Find(entry.name), nullptr);
    return static_cast<double>(std::clock() - begun);
  };
  // Eight times as many: if each name were compared with all others, it would take 64 times as long.
  const double few = seconds(5000);
  EXPECT_LT(seconds(40000), 25 * few);
}

TEST(SafetensorsTest, TensorsOfDtypesThatWeftLacksAreSkipped) {
  const std::string header = R"({"a":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[0,3]},)"
                             R"("b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]},)"
                             R"("c":{"dtype":"F4","shape":[2,3],"data_offsets":[7,10]}})";
  SafetensorsReader reader(WriteText("skipped", FileOf(header, 10)));
  EXPECT_THAT(reader.Names(), ElementsAre("b"));
  EXPECT_EQ(reader.Skipped(), (std::map<std::string, std::string>{{"a", "F8_E4M3"}, {"c", "F4"}}));
  EXPECT_EQ(reader.Read("b", WholeBox({4}), MakeCpuAllocator()).ToVector<uint8_t>(),
            std::vector<uint8_t>(4, 'x'));
  try {
    reader.Read("a", WholeBox({3}), MakeCpuAllocator());
    FAIL() << "an F8_E4M3 is read";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kUnimplemented);
    EXPECT_EQ(error.message(), "'" + TestPath("skipped") +
                                   "': tensor 'a' has the dtype F8_E4M3, which Weft lacks; expected one of "
                                   "F32, F64, BF16, F16, I32, I64, U8, BOOL");
  }
  // What they take of the file counts all the same.
  EXPECT_THAT(ErrorOf(WriteText("skipped", FileOf(header, 9))),
              HasSubstr("its tensors take 10 bytes, it has 9"));
  EXPECT_THAT(
      ErrorOf(WriteText("skipped", FileOf(R"({"a":{"dtype":"C64","shape":[3],"data_offsets":[0,12]}})", 12))),
      HasSubstr("tensor 'a', C64[3], cannot lie in bytes 0 to 12"));
}

TEST(SafetensorsTest, ReadNamesWhatIsMissing) {
  const std::string path = TestPath("names.safetensors");
  SafetensorsWriter writer(path, {{"a", {DType::kF32, {2}}}}, {});
  writer.Write(Counting({2}));
  writer.Finish();
  SafetensorsReader reader(path);
  EXPECT_THAT([&] { reader.Read("b", WholeBox({2}), MakeCpuAllocator()); },
              ::testing::ThrowsMessage<Error>(HasSubstr("has no tensor 'b'")));
  EXPECT_THAT([&] { reader.Read("a", WholeBox({3}), MakeCpuAllocator()); },
              ::testing::ThrowsMessage<Error>(HasSubstr("tensor 'a' is f32[2], expected shape [3]")));
}

}  // namespace
}  // namespace weft

// A file of pieces whose writing is given up.

#include "dtensor/checkpoint/folder/piece_file.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/device/allocator.h"
#include "runtime/tensor/copy.h"
#include "tests/dtensor/checkpoint/files/crash_files.h"
#include "tests/dtensor/checkpoint/files/forwarding_files.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using testing::ElementsAre;

constexpr char kPath[] = "rank-00000.safetensors";

// A disk that tells of each write, by its bytes, and of each flush, as 0.
class ToldFiles final : public ForwardingFiles {
 public:
  using Told = std::function<void(int64_t num_bytes)>;
  explicit ToldFiles(Told told) : ForwardingFiles(std::make_shared<CrashFiles>()), told_(std::move(told)) {}

  std::unique_ptr<FileWriter> Create(const std::string& path) override {
    return std::make_unique<Writer>(files().Create(path), told_);
  }

 private:
  class Writer final : public FileWriter {
   public:
    Writer(std::unique_ptr<FileWriter> file, const Told& told) : file_(std::move(file)), told_(told) {}
    int64_t Write(const void* data, int64_t num_bytes) override {
      const int64_t written = file_->Write(data, num_bytes);
      told_(written);
      return written;
    }
    void Sync() override {
      told_(0);
      file_->Sync();
    }
    void Close() override { file_->Close(); }

   private:
    const std::unique_ptr<FileWriter> file_;
    const Told& told_;
  };

  const Told told_;
};

std::vector<PieceToSave> Pieces(const std::vector<int64_t>& sizes) {
  std::vector<PieceToSave> pieces;
  for (size_t i = 0; i < sizes.size(); ++i) {
    PieceToSave& piece = pieces.emplace_back();
    piece.name = std::string(1, static_cast<char>('a' + i));
    piece.record.dtype = DType::kU8;
    piece.record.box = WholeBox(Shape({sizes[i]}));
    piece.elements = Tensor::Empty(MakeCpuAllocator(), DType::kU8, Shape({sizes[i]}));
    FillTensor(piece.elements, 7);
  }
  return pieces;
}

constexpr int64_t kMiB = 1 << 20;

// Writes of the header, of two small pieces, of one that is written in parts, and a flush: given up behind any of them, nothing
// comes after it.
TEST(PieceFileTest, WritingEndsSoonWhenItIsGivenUp) {
  const std::vector<PieceToSave> pieces = Pieces({3, 5, 9 * kMiB});
  const auto writes = [&](size_t stop_behind) {
    std::stop_source stop;
    std::vector<int64_t> done;
    ToldFiles files([&](int64_t num_bytes) {
      done.push_back(num_bytes);
      if (done.size() == stop_behind) stop.request_stop();
    });
    const std::string message =
        MessageOf([&] { WritePieces(files, kPath, pieces, {.stop = stop.get_token()}); });
    EXPECT_EQ(message, stop_behind < 7 ? "writing 'rank-00000.safetensors' was given up" : "no error");
    return done;
  };
  const std::vector<int64_t> all = writes(100);
  EXPECT_THAT(all, ElementsAre(testing::Gt(100), 3, 5, 4 * kMiB, 4 * kMiB, kMiB, 0));
  for (size_t count = 1; count < all.size(); ++count) {
    EXPECT_EQ(writes(count), std::vector<int64_t>(all.begin(), all.begin() + static_cast<int64_t>(count)));
  }
}

// At least a quarter of a second for what takes a third; there is no upper bound to time.
TEST(PieceFileTest, WritingKeepsToTheRate) {
  ToldFiles files([](int64_t) {});
  const auto begun = std::chrono::steady_clock::now();
  WritePieces(files, kPath, Pieces({kMiB, kMiB, kMiB}), {.bytes_per_second = 1e7});
  EXPECT_GE(std::chrono::steady_clock::now() - begun, std::chrono::milliseconds(250));
}

// At this rate the header alone takes hours.
TEST(PieceFileTest, WhoeverWaitsForTheRateIsWoken) {
  std::stop_source stop;
  std::thread other;
  ToldFiles files([&](int64_t) { other = std::thread([&] { stop.request_stop(); }); });
  EXPECT_EQ(MessageOf([&] {
              WritePieces(files, kPath, Pieces({3}), {.bytes_per_second = 1e-2, .stop = stop.get_token()});
            }),
            "writing 'rank-00000.safetensors' was given up");
  other.join();
}

// Likewise, but all of it is written.
TEST(PieceFileTest, WhoeverWaitsForTheRateMayBeHurried) {
  std::stop_source hurry;
  std::thread other;
  int64_t num_bytes = 0;
  ToldFiles files([&](int64_t written) {
    num_bytes += written;
    if (!other.joinable()) other = std::thread([&] { hurry.request_stop(); });
  });
  const WrittenPieces written =
      WritePieces(files, kPath, Pieces({3, 5}), {.bytes_per_second = 1e-2, .hurry = hurry.get_token()});
  other.join();
  EXPECT_EQ(num_bytes, written.num_bytes);
  // It may have been said before.
  ToldFiles quiet([](int64_t) {});
  const PieceFileOptions hurried = {.bytes_per_second = 1e-2, .hurry = hurry.get_token()};
  EXPECT_EQ(WritePieces(quiet, kPath, Pieces({3, 5}), hurried).table, written.table);
}

}  // namespace
}  // namespace weft

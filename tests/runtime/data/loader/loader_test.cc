#include "runtime/data/loader/loader.h"

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/message_of.h"
#include "tests/runtime/data/loader/numbers.h"

namespace weft {
namespace {

TEST(LoaderTest, GivesTheSamplersSequenceAcrossEpochs) {
  for (const int num_threads : {0, 1, 3}) {
    for (const int64_t batch : {1, 4, 10, 13, 30}) {
      Loader loader(std::make_shared<Numbers>(10), Shuffled(10),
                    {.batch = batch, .num_threads = num_threads});
      std::vector<int64_t> samples;
      for (int64_t step = 0; step < 7; ++step) {
        EXPECT_EQ(loader.position(), step * batch);
        const LoaderBatch got = loader.Get();
        EXPECT_EQ(got.position, step * batch);
        EXPECT_GE(got.wait_s, 0);
        for (const int64_t number : NumbersOf(got)) samples.push_back(number);
      }
      EXPECT_EQ(samples, Expected(*Shuffled(10), 0, 7 * batch)) << batch;
    }
  }
}

TEST(LoaderTest, AnEpochHasEachSampleOnce) {
  Loader loader(std::make_shared<Numbers>(12), Shuffled(12), {.batch = 4});
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::set<int64_t> seen;
    for (int step = 0; step < 3; ++step) {
      for (const int64_t number : NumbersOf(loader.Get())) seen.insert(number);
    }
    EXPECT_EQ(seen.size(), 12u);
  }
}

// Ranks read their rows alone, whatever their number; uneven, empty and repeated ranges too.
TEST(LoaderTest, RanksReadTheirRowsOfTheSameBatch) {
  const std::vector<std::vector<std::vector<RowRange>>> worlds = {
      {{{0, 12}}},
      {{{0, 6}}, {{6, 6}}},
      {{{0, 5}}, {{5, 5}}, {{10, 2}}, {{12, 0}}},
      {{{0, 2}, {6, 2}}, {{2, 2}, {8, 2}}, {{4, 2}, {10, 2}}},  // two microbatches over three ranks
  };
  for (const std::vector<std::vector<RowRange>>& ranks : worlds) {
    for (int64_t step = 0; step < 4; ++step) {
      std::vector<int64_t> found(12, -1);
      for (const std::vector<RowRange>& rows : ranks) {
        const auto numbers = std::make_shared<Numbers>(50);
        Loader loader(numbers, Shuffled(50),
                      {.batch = 12, .rows = rows, .num_threads = 2, .position = 12 * step});
        const std::vector<int64_t> got = NumbersOf(loader.Get());
        size_t at = 0;
        for (const RowRange& range : rows) {
          for (int64_t i = 0; i < range.count; ++i)
            found[static_cast<size_t>(range.first + i)] = got.at(at++);
        }
        EXPECT_EQ(got.size(), at);
      }
      EXPECT_EQ(found, Expected(*Shuffled(50), 12 * step, 12 * step + 12));
    }
  }
}

TEST(LoaderTest, AResumeOnOtherRanksAndAnotherBatchGoesOnAtTheSameSample) {
  std::vector<int64_t> samples;
  std::string state;
  {
    Loader loader(std::make_shared<Numbers>(23), Shuffled(23), {.batch = 6, .num_threads = 2});
    for (int step = 0; step < 5; ++step) {
      for (const int64_t number : NumbersOf(loader.Get())) samples.push_back(number);
    }
    state = loader.State().ToJson();
  }
  EXPECT_EQ(state, R"json({"samples":30,"sampler":"shuffled(23, seed 1337)"})json");
  // Two ranks, batches of 8, then one of batches of 5.
  std::string next;
  std::vector<std::vector<int64_t>> halves(2);
  for (size_t rank = 0; rank < 2; ++rank) {
    Loader loader(std::make_shared<Numbers>(23), Shuffled(23),
                  {.batch = 8, .rows = {{.first = static_cast<int64_t>(4 * rank), .count = 4}}});
    loader.Restore(DataPosition::FromJson(state));
    for (int step = 0; step < 3; ++step) {
      for (const int64_t number : NumbersOf(loader.Get())) halves[rank].push_back(number);
    }
    next = loader.State().ToJson();
  }
  for (size_t step = 0; step < 3; ++step) {
    for (const std::vector<int64_t>& half : halves) {
      samples.insert(samples.end(), half.begin() + 4 * static_cast<int64_t>(step),
                     half.begin() + 4 * static_cast<int64_t>(step) + 4);
    }
  }
  Loader loader(std::make_shared<Numbers>(23), Shuffled(23), {.batch = 5});
  loader.Restore(DataPosition::FromJson(next));
  for (const int64_t number : NumbersOf(loader.Get())) samples.push_back(number);
  EXPECT_EQ(samples, Expected(*Shuffled(23), 0, 30 + 24 + 5));
}

TEST(LoaderTest, AResumeReadsNothingAgain) {
  const auto numbers = std::make_shared<Numbers>(1000000);
  Loader loader(numbers, Shuffled(1000000), {.batch = 10, .num_threads = 0, .position = 900000});
  EXPECT_EQ(NumbersOf(loader.Get()), Expected(*Shuffled(1000000), 900000, 900010));
  EXPECT_EQ(numbers->num_reads(), 10);
}

TEST(LoaderTest, AnotherSequencesPositionIsRefused) {
  Loader loader(std::make_shared<Numbers>(9), Shuffled(9), {.batch = 2});
  EXPECT_EQ(
      InvalidArgumentMessage([&] { loader.Restore({.samples = 4, .sampler = "shuffled(8, seed 1337)"}); }),
      "data loader: the position is one of shuffled(8, seed 1337), this run's data is shuffled(9, seed "
      "1337)");
  EXPECT_EQ(loader.position(), 0);
}

TEST(LoaderTest, SeekGoesAnywhere) {
  for (const int num_threads : {0, 2}) {
    Loader loader(std::make_shared<Numbers>(30), Shuffled(30), {.batch = 4, .num_threads = num_threads});
    for (const int64_t position : {60, 3, 0, 100}) {
      loader.Seek(position);
      EXPECT_EQ(NumbersOf(loader.Get()), Expected(*Shuffled(30), position, position + 4));
      EXPECT_EQ(loader.position(), position + 4);
    }
    EXPECT_EQ(InvalidArgumentMessage([&] { loader.Seek(-1); }),
              "data loader: position: expected at least 0, got -1");
  }
}

// The threads read ahead what `ahead` says, and not a row more, however long nobody asks.
TEST(LoaderTest, NoMoreIsReadThanTheQueueHolds) {
  for (const int num_threads : {1, 3}) {
    const auto allocator = MakeCpuAllocator();
    const auto numbers = std::make_shared<Numbers>(1000);
    Loader loader(numbers, Shuffled(1000), {.batch = 7, .num_threads = num_threads, .ahead = 3}, allocator);
    const int64_t batch_bytes = RoundUpToGranule(7 * 8) + RoundUpToGranule(7 * 24);
    for (int64_t step = 0; step < 20; ++step) {
      EXPECT_EQ(loader.num_ahead(), 3);
      {
        const LoaderBatch batch = loader.Get();
        EXPECT_LE(numbers->num_reads(), 7 * (step + 1 + 3));
        EXPECT_EQ(allocator->stats().live_bytes, batch_bytes * 4);
      }
      EXPECT_EQ(allocator->stats().live_bytes, batch_bytes * 3);
    }
    while (numbers->num_reads() < 7 * 23) std::this_thread::yield();  // comes to that, and to no more
  }
}

TEST(LoaderTest, ABatchIsItsUsersAlone) {
  Loader loader(std::make_shared<Numbers>(40), Shuffled(40), {.batch = 5, .num_threads = 3});
  LoaderBatch first = loader.Get();
  const std::vector<int64_t> numbers = NumbersOf(first);
  for (int step = 0; step < 10; ++step) loader.Get();
  EXPECT_EQ(NumbersOf(first), numbers) << "nobody writes into what was given out";
  EXPECT_EQ(first.fields[0].buffer()->use_count(), 1);
}

TEST(LoaderTest, ManyThreadsAndRestartsKeepTheSequence) {
  Loader loader(std::make_shared<Numbers>(97), Shuffled(97), {.batch = 16, .num_threads = 4, .ahead = 5});
  int64_t position = 0;
  for (int round = 0; round < 200; ++round) {
    if (round % 7 == 3) loader.Seek(position = 31 * round);
    EXPECT_EQ(NumbersOf(loader.Get()), Expected(*Shuffled(97), position, position + 16));
    position += 16;
  }
}

TEST(LoaderTest, RefusesBadArguments) {
  const auto message = [](const LoaderOptions& options) {
    return InvalidArgumentMessage([&] { Loader(std::make_shared<Numbers>(5), Shuffled(5), options); });
  };
  EXPECT_EQ(message({.batch = 0}), "data loader: batch: expected at least 1 sample, got 0");
  EXPECT_EQ(message({.batch = 4, .rows = {{0, 2}, {3, 2}}}),
            "data loader: rows [3, 5) are not within a batch of 4");
  EXPECT_EQ(message({.batch = 4, .rows = {{-1, 2}}}),
            "data loader: rows [-1, 1) are not within a batch of 4");
  EXPECT_EQ(message({.batch = 1, .num_threads = -1}), "data loader: threads: expected at least 0, got -1");
  EXPECT_EQ(message({.batch = 1, .ahead = 0}), "data loader: batches ahead: expected at least 1, got 0");
  EXPECT_EQ(message({.batch = 1, .position = -2}), "data loader: position: expected at least 0, got -2");
  EXPECT_EQ(InvalidArgumentMessage([] { Loader(std::make_shared<Numbers>(5), Shuffled(6), {.batch = 1}); }),
            "data loader: shuffled(6, seed 1337) draws from 6 samples, the dataset has 5");
  EXPECT_EQ(InvalidArgumentMessage([] { Loader(nullptr, Shuffled(6), {.batch = 1}); }),
            "data loader: expected a dataset and a sampler");
}

}  // namespace
}  // namespace weft

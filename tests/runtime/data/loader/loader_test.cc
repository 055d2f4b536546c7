#include "runtime/data/loader/loader.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using ::testing::ElementsAre;

// Sample i is i, and its halves; `before_read` runs first.
class Numbers final : public Dataset {
 public:
  explicit Numbers(int64_t size, std::function<void(int64_t index)> before_read = nullptr)
      : size_(size), before_read_(std::move(before_read)) {}

  int64_t num_samples() const override { return size_; }
  const std::vector<SampleField>& fields() const override { return fields_; }
  void Read(int64_t index, absl::Span<const FieldBytes> fields) const override {
    if (before_read_) before_read_(index);
    num_reads_.fetch_add(1);
    ElementsOf<int64_t>(fields[0])[0] = index;
    const absl::Span<float> halves = ElementsOf<float>(fields[1]);
    std::fill(halves.begin(), halves.end(), static_cast<float>(index) / 2);
  }
  std::string NameOf(int64_t index) const override { return absl::StrCat("'numbers.bin', record ", index); }

  int64_t num_reads() const { return num_reads_.load(); }

 private:
  const int64_t size_;
  const std::function<void(int64_t)> before_read_;
  const std::vector<SampleField> fields_ = {{.name = "number", .dtype = DType::kI64, .shape = {}},
                                            {.name = "halves", .dtype = DType::kF32, .shape = {2, 3}}};
  mutable std::atomic<int64_t> num_reads_ = 0;
};

// A door that reads wait at.
class Door {
 public:
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void Pass() {
    std::unique_lock lock(mutex_);
    ++num_waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
    --num_waiting_;
    changed_.notify_all();
  }
  void WaitUntil(const std::function<bool(int num_waiting)>& condition) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return condition(num_waiting_); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int num_waiting_ = 0;
};

std::vector<int64_t> NumbersOf(const LoaderBatch& batch) {
  const std::vector<int64_t> numbers = batch.fields[0].ToVector<int64_t>();
  EXPECT_EQ(batch.fields[1].shape(), Shape({static_cast<int64_t>(numbers.size()), 2, 3}));
  const std::vector<float> halves = batch.fields[1].ToVector<float>();
  for (size_t i = 0; i < halves.size(); ++i) EXPECT_EQ(halves[i], static_cast<float>(numbers[i / 6]) / 2);
  return numbers;
}

std::shared_ptr<const Sampler> Shuffled(int64_t n) { return std::make_shared<ShuffledSampler>(n, 1337); }

// What comes at positions [first, end), by the sampler alone.
std::vector<int64_t> Expected(const Sampler& sampler, int64_t first, int64_t end) {
  std::vector<int64_t> samples;
  for (int64_t position = first; position < end; ++position) samples.push_back(sampler.AtPosition(position));
  return samples;
}

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

TEST(LoaderTest, AnErrorNamesSampleFileAndRecordAndStays) {
  for (const int num_threads : {0, 1, 4}) {
    const auto throws = [](int64_t index) {
      if (index == 17 || index == 3) Throw(absl::StatusCode::kDataLoss, "bad checksum");
    };
    const SequentialSampler order(20);
    Loader loader(std::make_shared<Numbers>(20, throws), std::make_shared<SequentialSampler>(20),
                  {.batch = 6, .num_threads = num_threads, .position = 12});
    for (int i = 0; i < 2; ++i) {
      try {
        loader.Get();
        FAIL() << "expected an error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), absl::StatusCode::kDataLoss);
        EXPECT_EQ(error.message(),
                  "data loader: sample 17 of epoch 0 ('numbers.bin', record 17): bad checksum");
      }
      EXPECT_EQ(loader.position(), 12) << "the position stays";
    }
    loader.Seek(18);
    EXPECT_EQ(MessageOf([&] { loader.Get(); }),
              "data loader: sample 3 of epoch 1 ('numbers.bin', record 3): bad checksum");
    loader.Seek(24);
    EXPECT_EQ(NumbersOf(loader.Get()), Expected(order, 24, 30)) << "past it";
  }
}

// Whatever the threads do first, the error is that of the batch's first bad row.
TEST(LoaderTest, OfSeveralErrorsTheFirstRowsIsTold) {
  for (int round = 0; round < 20; ++round) {
    Loader loader(std::make_shared<Numbers>(64,
                                            [](int64_t index) {
                                              if (index >= 5) throw std::runtime_error("x");
                                            }),
                  std::make_shared<SequentialSampler>(64), {.batch = 64, .num_threads = 4});
    EXPECT_EQ(MessageOf([&] { loader.Get(); }),
              "data loader: sample 5 of epoch 0 ('numbers.bin', record 5): x");
  }
}

TEST(LoaderTest, OtherExceptionsAreErrorsToo) {
  const auto code_of = [](const std::function<void(int64_t)>& throws) {
    Loader loader(std::make_shared<Numbers>(4, throws), std::make_shared<SequentialSampler>(4), {.batch = 2});
    try {
      loader.Get();
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), testing::HasSubstr("'numbers.bin', record 0"));
      return error.code();
    }
    return absl::StatusCode::kOk;
  };
  EXPECT_EQ(code_of([](int64_t) { throw std::bad_alloc(); }), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code_of([](int64_t) { throw 7; }), absl::StatusCode::kUnknown);
}

// A batch that there was no memory for comes when there is.
TEST(LoaderTest, LackOfMemoryLosesNothing) {
  const int64_t batch_bytes = RoundUpToGranule(8 * 8) + RoundUpToGranule(8 * 24);
  Loader loader(std::make_shared<Numbers>(100), Shuffled(100), {.batch = 8, .ahead = 1},
                MakeCpuAllocator(/*cap_bytes=*/2 * batch_bytes));
  std::vector<int64_t> samples;
  {
    const LoaderBatch held = loader.Get();
    for (const int64_t number : NumbersOf(held)) samples.push_back(number);
    EXPECT_THAT(MessageOf([&] { loader.Get(); }), testing::HasSubstr("live"));
    EXPECT_EQ(loader.position(), 8);
  }
  for (int step = 1; step < 5; ++step) {
    for (const int64_t number : NumbersOf(loader.Get())) samples.push_back(number);
  }
  EXPECT_EQ(samples, Expected(*Shuffled(100), 0, 40));
}

TEST(LoaderTest, TheDestructorEndsItsThreadsInMidBatch) {
  for (int round = 0; round < 50; ++round) {
    const auto numbers = std::make_shared<Numbers>(100000);
    { Loader loader(numbers, Shuffled(100000), {.batch = 50000, .num_threads = 2}); }
    EXPECT_EQ(numbers.use_count(), 1) << "no thread is left";
  }
}

// A read that never ends neither holds Get nor the destructor up; its thread keeps what it reads alive.
TEST(LoaderTest, AReadThatIsStuckIsNamedAndLeftBehind) {
  const auto door = std::make_shared<Door>();
  const auto numbers = std::make_shared<Numbers>(10, [door](int64_t index) {
    if (index == 4) door->Pass();
  });
  {
    Loader loader(numbers, std::make_shared<SequentialSampler>(10),
                  {.batch = 6, .num_threads = 2, .patience = std::chrono::milliseconds(20)});
    door->WaitUntil([](int num_waiting) { return num_waiting == 1; });
    try {
      loader.Get();
      FAIL() << "expected an error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), absl::StatusCode::kDeadlineExceeded);
      EXPECT_THAT(error.message(), testing::StartsWith("data loader: sample "));
      EXPECT_THAT(error.message(), testing::EndsWith("not read within 0.02 s"));
    }
  }
  EXPECT_GT(numbers.use_count(), 1);
  door->Open();
  door->WaitUntil([](int num_waiting) { return num_waiting == 0; });
  while (numbers.use_count() > 1) std::this_thread::yield();
}

// However patient Get is: an error of the program that destroys the loader is not to wait for a read.
TEST(LoaderTest, AnErrorDoesNotWaitForAReadThatIsStuck) {
  const auto door = std::make_shared<Door>();
  const auto numbers = std::make_shared<Numbers>(10, [door](int64_t) { door->Pass(); });
  std::promise<std::string> told;
  std::thread program([&] {
    told.set_value(MessageOf([&] {
      Loader loader(numbers, std::make_shared<SequentialSampler>(10),
                    {.batch = 6, .num_threads = 2, .patience = std::chrono::hours(1)});
      door->WaitUntil([](int num_waiting) { return num_waiting == 2; });
      Throw(absl::StatusCode::kInternal, "of the program");
    }));
  });
  std::future<std::string> message = told.get_future();
  const bool is_told = message.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  door->Open();
  program.join();
  EXPECT_TRUE(is_told) << "the error waits for the read";
  EXPECT_EQ(message.get(), "of the program");
  while (numbers.use_count() > 1) std::this_thread::yield();
}

// What could not be read is read again when it is asked for again, and nothing else is; so with threads and without.
TEST(LoaderTest, GetAfterAnErrorReadsAgain) {
  for (const int num_threads : {0, 1, 3}) {
    std::atomic<bool> is_broken = true;
    const auto numbers = std::make_shared<Numbers>(40, [&](int64_t index) {
      if (is_broken && (index == 5 || index == 11)) throw std::runtime_error("not mounted");
    });
    const SequentialSampler order(40);
    Loader loader(numbers, std::make_shared<SequentialSampler>(40),
                  {.batch = 16, .num_threads = num_threads, .ahead = 1});
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(MessageOf([&] { loader.Get(); }),
                "data loader: sample 5 of epoch 0 ('numbers.bin', record 5): not mounted");
    }
    EXPECT_EQ(numbers->num_reads(), num_threads == 0 ? 5 : 14);
    is_broken = false;
    EXPECT_EQ(NumbersOf(loader.Get()), Expected(order, 0, 16));
    EXPECT_EQ(NumbersOf(loader.Get()), Expected(order, 16, 32));
  }
}

// An error on a thread of the loader is the Get's, whatever else goes wrong in telling of it.
TEST(LoaderTest, AnErrorInNamingARecordEndsNoProcess) {
  class Nameless final : public Dataset {
   public:
    int64_t num_samples() const override { return 4; }
    const std::vector<SampleField>& fields() const override { return fields_; }
    void Read(int64_t, absl::Span<const FieldBytes>) const override { throw std::runtime_error("x"); }
    std::string NameOf(int64_t) const override { throw 7; }

   private:
    const std::vector<SampleField> fields_ = {{.name = "number", .dtype = DType::kI64, .shape = {}}};
  };
  for (const int num_threads : {0, 2}) {
    Loader loader(std::make_shared<Nameless>(), std::make_shared<SequentialSampler>(4),
                  {.batch = 2, .num_threads = num_threads});
    EXPECT_EQ(MessageOf([&] { loader.Get(); }),
              "data loader: sample 0 of epoch 0 (without a name: an exception that is no std::exception): x");
  }
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

// What becomes of reads that fail, and of those that do not end.

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/data/loader/loader.h"
#include "tests/message_of.h"
#include "tests/runtime/data/loader/numbers.h"

namespace weft {
namespace {

TEST(LoaderErrorsTest, AnErrorNamesSampleFileAndRecordAndStays) {
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
TEST(LoaderErrorsTest, OfSeveralErrorsTheFirstRowsIsTold) {
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

TEST(LoaderErrorsTest, OtherExceptionsAreErrorsToo) {
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
TEST(LoaderErrorsTest, LackOfMemoryLosesNothing) {
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

TEST(LoaderErrorsTest, TheDestructorEndsItsThreadsInMidBatch) {
  for (int round = 0; round < 50; ++round) {
    const auto numbers = std::make_shared<Numbers>(100000);
    { Loader loader(numbers, Shuffled(100000), {.batch = 50000, .num_threads = 2}); }
    EXPECT_EQ(numbers.use_count(), 1) << "no thread is left";
  }
}

// A read that never ends neither holds Get nor the destructor up; its thread keeps what it reads alive.
TEST(LoaderErrorsTest, AReadThatIsStuckIsNamedAndLeftBehind) {
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

TEST(LoaderErrorsTest, PatienceMayBeForEver) {
  const auto door = std::make_shared<Door>();
  Loader loader(std::make_shared<Numbers>(10, [door](int64_t) { door->Pass(); }),
                std::make_shared<SequentialSampler>(10),
                {.batch = 6, .num_threads = 2, .patience = std::chrono::milliseconds::max()});
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    door->Open();
  });
  EXPECT_EQ(MessageOf([&] { loader.Get(); }), "no error");
  opener.join();
}

// However patient Get is: an error of the program that destroys the loader is not to wait for a read.
TEST(LoaderErrorsTest, AnErrorDoesNotWaitForAReadThatIsStuck) {
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
TEST(LoaderErrorsTest, GetAfterAnErrorReadsAgain) {
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
TEST(LoaderErrorsTest, AnErrorInNamingARecordEndsNoProcess) {
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

}  // namespace
}  // namespace weft

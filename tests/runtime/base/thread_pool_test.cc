#include "runtime/base/thread_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "runtime/base/error.h"

extern "C" void omp_set_num_threads(int num_threads);
extern "C" int omp_get_max_threads();

namespace weft {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

Error ErrorOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return Error(absl::StatusCode::kOk, "nothing was thrown");
}

// Waits until `count` threads are here; false after half a minute.
bool Meet(std::atomic<int>& arrived, int count) {
  ++arrived;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (arrived < count) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(ThreadPool, RunsEveryTaskOnce) {
  for (int num_threads : {1, 2, 3, 5}) {
    ThreadPool pool(num_threads);
    EXPECT_EQ(pool.num_threads(), num_threads);
    for (int64_t num_tasks : {0, 1, 2, 3, 7, 64, 1001}) {
      std::vector<int> runs(num_tasks, 0);  // plain ints: the pool orders the writes before our reads
      pool.Run(num_tasks, [&](int64_t task) { ++runs[task]; });
      EXPECT_EQ(runs, std::vector<int>(num_tasks, 1));
    }
  }
}

TEST(ThreadPool, CutFollowsFromSizeAndGrainAlone) {
  for (int num_threads : {1, 3}) {
    ThreadPool pool(num_threads);
    for (int64_t n : {0, 1, 7, 8, 9, 100}) {
      for (int64_t grain : {1, 3, 8, 1000}) {
        std::set<std::pair<int64_t, int64_t>> expected;
        for (int64_t begin = 0; begin < n; begin += grain)
          expected.emplace(begin, std::min(n, begin + grain));
        std::mutex mutex;
        std::multiset<std::pair<int64_t, int64_t>> pieces;
        pool.ParallelFor(n, grain, [&](int64_t begin, int64_t end) {
          std::lock_guard<std::mutex> lock(mutex);
          pieces.emplace(begin, end);
        });
        EXPECT_THAT(pieces, ::testing::ElementsAreArray(expected)) << n << " by " << grain;
      }
    }
  }
}

TEST(ThreadPool, SumOverPiecesHasTheSameBitsOnAnyThreadCount) {
  std::vector<float> values(10007);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1.0f / static_cast<float>(i + 1);
  std::vector<float> sums;
  for (int num_threads : {1, 2, 3, 4}) {
    ThreadPool pool(num_threads);
    std::vector<float> partial(11, 0.0f);
    pool.ParallelFor(static_cast<int64_t>(values.size()), 1000, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) partial[begin / 1000] += values[i];
    });
    float sum = 0;
    for (float value : partial) sum += value;
    sums.push_back(sum);
  }
  EXPECT_EQ(sums, std::vector<float>(4, sums[0]));
}

TEST(ThreadPool, TasksRunAtTheSameTime) {
  for (int num_threads : {2, 3}) {
    ThreadPool pool(num_threads);
    std::atomic<int> arrived{0};
    std::atomic<bool> met{true};
    pool.Run(num_threads, [&](int64_t) {
      if (!Meet(arrived, num_threads)) met = false;
    });
    EXPECT_TRUE(met);
  }
}

// Far longer than workers stay awake: the wake-up path.
TEST(ThreadPool, WakesSleepingWorkers) {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(milliseconds(10));
    std::atomic<int> arrived{0};
    std::atomic<bool> met{true};
    pool.Run(3, [&](int64_t) {
      if (!Meet(arrived, 3)) met = false;
    });
    EXPECT_TRUE(met);
  }
}

// The caller has nothing left to do and blocks until a slow worker ends.
TEST(ThreadPool, ReturnsOnlyWhenAllTasksAreDone) {
  ThreadPool pool(2);
  std::atomic<int> arrived{0};
  int done = 0;
  const std::thread::id caller = std::this_thread::get_id();
  pool.Run(2, [&](int64_t) {
    Meet(arrived, 2);
    if (std::this_thread::get_id() == caller) return;
    std::this_thread::sleep_for(milliseconds(30));
    done = 1;
  });
  EXPECT_EQ(done, 1);
}

TEST(ThreadPool, ManyShortRuns) {
  ThreadPool pool(3);
  int64_t expected = 0;
  std::vector<int64_t> sums(5, 0);
  for (int64_t run = 0; run < 5000; ++run) {
    pool.Run(5, [&](int64_t task) { sums[task] += run; });
    expected += run;
    if (run % 1000 == 0) std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(sums, std::vector<int64_t>(5, expected));
}

TEST(ThreadPool, CarriesAnExceptionToTheCallerAndGoesOn) {
  for (int num_threads : {1, 2, 3}) {
    ThreadPool pool(num_threads);
    for (int64_t bad : {0, 3, 99}) {
      const Error error = ErrorOf([&] {
        pool.Run(100, [&](int64_t task) {
          if (task == bad) ThrowInvalidArgument("task ", task, " is bad");
        });
      });
      EXPECT_EQ(error.message(), "task " + std::to_string(bad) + " is bad");
      EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
      std::atomic<int64_t> runs{0};
      pool.Run(10, [&](int64_t) { ++runs; });
      EXPECT_EQ(runs, 10);
    }
  }
}

TEST(ThreadPool, DropsTasksThatHaveNotStarted) {
  ThreadPool inline_pool(1);
  int64_t runs = 0;
  EXPECT_EQ(ErrorOf([&] {
              inline_pool.Run(100, [&](int64_t task) {
                ++runs;
                if (task == 3) ThrowInvalidArgument("stop");
              });
            }).message(),
            "stop");
  EXPECT_EQ(runs, 4);

  // Both threads hold a task when one throws; the other waits until it has, then no third task may start.
  constexpr int64_t kTasks = 100'000;  // of a millisecond each: more than any machine holds the thrower up
  ThreadPool pool(2);
  std::atomic<int> arrived{0};
  std::atomic<int64_t> started{0};
  ErrorOf([&] {
    pool.Run(kTasks, [&](int64_t task) {
      ++started;
      if (task < 2) Meet(arrived, 2);
      if (task == 0) ThrowInvalidArgument("stop");
      std::this_thread::sleep_for(milliseconds(1));
    });
  });
  EXPECT_LT(started, kTasks);
}

TEST(ThreadPool, OneOfSeveralExceptionsArrives) {
  ThreadPool pool(3);
  for (int round = 0; round < 100; ++round) {
    const Error error =
        ErrorOf([&] { pool.Run(50, [](int64_t task) { ThrowInvalidArgument("task ", task); }); });
    EXPECT_THAT(error.message(), HasSubstr("task "));
  }
}

TEST(ThreadPool, ExceptionsNeedNotBeErrors) {
  ThreadPool pool(2);
  EXPECT_THROW(pool.Run(4, [](int64_t) { throw 42; }), int);
}

TEST(ThreadPool, RefusesToBeEnteredFromATask) {
  for (int num_threads : {1, 2}) {
    ThreadPool pool(num_threads);
    const Error error = ErrorOf([&] { pool.Run(4, [&](int64_t) { pool.Run(2, [](int64_t) {}); }); });
    EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(error.message(), HasSubstr("inside a task"));
    pool.Run(2, [](int64_t) {});  // and is free again
  }
}

TEST(ThreadPool, NamesWrongNumbers) {
  EXPECT_THAT(ErrorOf([] { ThreadPool pool(0); }).message(), HasSubstr("at least 1 thread, got 0"));
  ThreadPool pool(2);
  EXPECT_THAT(ErrorOf([&] { pool.Run(-1, [](int64_t) {}); }).message(), HasSubstr("got -1"));
  EXPECT_THAT(ErrorOf([&] { pool.ParallelFor(-2, 1, [](int64_t, int64_t) {}); }).message(),
              HasSubstr("got -2"));
  EXPECT_THAT(ErrorOf([&] { pool.ParallelFor(2, 0, [](int64_t, int64_t) {}); }).message(),
              HasSubstr("grain of at least 1, got 0"));
}

TEST(ThreadPool, EveryRankHasItsOwn) {
  std::vector<std::thread> ranks;
  std::vector<int64_t> sums(4, 0);
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&sums, rank] {
      ThreadPool pool(2);
      std::vector<int64_t> parts(8, 0);
      for (int run = 0; run < 500; ++run) pool.Run(8, [&](int64_t task) { parts[task] += task; });
      for (int64_t part : parts) sums[rank] += part;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(sums, std::vector<int64_t>(4, 500 * 28));
}

TEST(ThreadPool, StartsAndEndsUnused) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(4);
}

TEST(ThreadPool, TakesOpenMpThreadsAway) {
  std::thread([] {
    omp_set_num_threads(3);
    ASSERT_EQ(omp_get_max_threads(), 3);
    ThreadPool pool(2);
    EXPECT_EQ(omp_get_max_threads(), 1);
  }).join();
}

}  // namespace
}  // namespace weft

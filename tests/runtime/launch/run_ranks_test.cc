#include "runtime/launch/run_ranks.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string MessageOf(const std::function<void()>& function) {
  try {
    function();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(RunRanksTest, EveryRankHasAThreadAndAMachineOfItsOwn) {
  std::mutex mutex;
  std::set<std::thread::id> threads = {std::this_thread::get_id()};
  std::set<int> ranks;
  std::set<const void*> parts;
  Tracer tracer;
  RunRanks(3,
           [&](World& world) {
             const auto all = world.NewGroup("all", {0, 1, 2});
             std::unique_lock<std::mutex> lock(mutex);
             EXPECT_EQ(world.size(), 3);
             EXPECT_EQ(world.tracer(), &tracer);
             EXPECT_EQ(world.pool().num_threads(), 2);
             EXPECT_EQ(world.allocator()->device().type, DeviceType::kCpu);
             threads.insert(std::this_thread::get_id());
             ranks.insert(world.rank());
             parts.insert({&world.pool(), world.allocator().get(), &world.ledger()});
             lock.unlock();
             all->Barrier();  // all live at once, so their addresses differ
           },
           {.threads_per_rank = 2, .tracer = &tracer});
  EXPECT_EQ(threads.size(), 4u);
  EXPECT_EQ(ranks, (std::set<int>{0, 1, 2}));
  EXPECT_EQ(parts.size(), 9u);
}

TEST(RunRanksTest, CoresAreDividedAmongTheRanks) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  for (int num_ranks : {1, 2, 5}) {
    RunRanks(num_ranks, [&](World& world) {
      EXPECT_EQ(world.pool().num_threads(), std::max(1, cores / num_ranks));
      EXPECT_EQ(world.tracer(), nullptr);
    });
  }
}

TEST(RunRanksTest, TheFirstErrorInTimeIsRethrown) {
  std::atomic<bool> has_thrown = false;
  const auto body = [&](World& world) {
    const auto group = world.NewGroup("dp", {0, 1, 2});
    if (world.rank() == 2) {
      has_thrown = true;
      Throw(absl::StatusCode::kDataLoss, "a broken file");
    }
    while (!has_thrown) std::this_thread::yield();
    group->Barrier();  // released, with another error
  };
  try {
    RunRanks(3, body);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(error.message(), "rank 2: a broken file");
  }
}

TEST(RunRanksTest, OtherExceptionsKeepTheirType) {
  const auto body = [](World& world) {
    if (world.rank() == 1) throw std::length_error("too long");
    world.NewGroup("dp", {0, 1})->Barrier();
  };
  EXPECT_THROW(RunRanks(2, body), std::length_error);
  EXPECT_THROW(RunRanks(2, [](World&) { throw 7; }), int);
}

// What the peers are told names the rank that failed and why.
TEST(RunRanksTest, ReleasedRanksHearWhoFailed) {
  std::string heard;
  const auto body = [&](World& world) {
    const auto group = world.NewGroup("dp", {0, 1});
    group->Barrier();  // both have made it
    if (world.rank() == 1) ThrowInvalidArgument("bad flag");
    heard = MessageOf([&] { group->Barrier(); });
    const std::string later = MessageOf([&] { world.NewGroup("late", {0, 1}); });
    EXPECT_EQ(later, "new group 'late': rank 1: bad flag");
  };
  EXPECT_EQ(MessageOf([&] { RunRanks(2, body); }), "rank 1: bad flag");
  EXPECT_EQ(heard, "group 'dp': rank 1: bad flag");
}

TEST(RunRanksTest, RanksShareAStore) {
  using std::chrono::milliseconds;
  for (int run = 0; run < 2; ++run) {  // each begins with an empty one
    RunRanks(3, [](World& world) {
      const auto group = world.NewGroup("all", {0, 1, 2});
      EXPECT_EQ(world.store().TryGet("greeting"), std::nullopt);
      group->Barrier();
      if (world.rank() == 2) world.store().Set("greeting", "hello");
      EXPECT_EQ(world.store().Get("greeting", std::chrono::minutes(1)), "hello");
      world.store().Add("count", world.rank() + 1);
      world.store().Set(std::to_string(world.rank()), "");
      world.store().Wait({"0", "1", "2"}, std::chrono::minutes(1));
      EXPECT_EQ(world.store().Get("count", milliseconds(0)), "6");
      EXPECT_TRUE(world.store().Check({"0", "1", "2"}));
      EXPECT_EQ(MessageOf([&] { world.store().Get("", milliseconds(0)); }),
                MessageOf([&] { world.store().Set("", ""); }));
    });
  }
}

// A timeout names what is missing and the time that was asked for, however the wait is made.
TEST(RunRanksTest, AWaitAtTheStoreEndsInTime) {
  RunRanks(1, [](World& world) {
    world.store().Set("here", "");
    for (const auto& [milliseconds, text] : {std::pair(0, "0"), {1, "0.001"}, {250, "0.25"}}) {
      const std::chrono::milliseconds timeout(milliseconds);
      const auto begin = std::chrono::steady_clock::now();
      const std::string expected = absl::StrCat("waited ", text, " s for 'there': not in the store");
      EXPECT_EQ(MessageOf([&] { world.store().Get("there", timeout); }), expected);
      EXPECT_EQ(MessageOf([&] { world.store().Wait({"here", "there"}, timeout); }), expected);
      EXPECT_GE(std::chrono::steady_clock::now() - begin, 2 * timeout);
    }
  });
}

TEST(RunRanksTest, AFailedRankEndsWaitsAtTheStore) {
  std::string heard;
  const auto body = [&](World& world) {
    if (world.rank() == 1) ThrowInvalidArgument("bad flag");
    heard = MessageOf([&] { world.store().Get("of rank 1", std::chrono::minutes(10)); });
  };
  EXPECT_EQ(MessageOf([&] { RunRanks(2, body); }), "rank 1: bad flag");
  EXPECT_EQ(heard, "rank 1: bad flag");
}

// Communicators in a structure that dies by unwinding, with work in flight on each.
struct Model {
  std::vector<std::shared_ptr<Communicator>> groups;
  std::vector<Work> works;
};

TEST(RunRanksTest, StructuresOfCommunicatorsDieSafelyInTheBody) {
  for (bool throws : {false, true}) {
    const auto body = [&](World& world) {
      Model model;
      for (int i = 0; i < 5; ++i) {
        model.groups.push_back(world.NewGroup("dp", {0, 1}));
        const Tensor tensor = Tensor::FromValues<float>({3}, {1, 2, 3});
        model.works.push_back(
            model.groups.back()->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true}));
      }
      if (throws && world.rank() == 0) ThrowInvalidArgument("stop");
    };
    EXPECT_EQ(MessageOf([&] { RunRanks(2, body); }), throws ? "rank 0: stop" : "nothing was thrown");
  }
}

TEST(RunRanksTest, CommTimeoutIsTheGroupsTimeout) {
  RunRanks(
      1,
      [](World& world) { EXPECT_EQ(world.NewGroup("dp", {0})->timeout(), std::chrono::milliseconds(1234)); },
      {.comm_timeout = std::chrono::milliseconds(1234)});
}

TEST(RunRanksTest, ACommTimeoutOfNoTimeIsRefused) {
  for (const int64_t count : {0, -5}) {
    EXPECT_THAT(
        MessageOf([&] { RunRanks(2, [](World&) {}, {.comm_timeout = std::chrono::milliseconds(count)}); }),
        HasSubstr(absl::StrCat("WorldOptions::comm_timeout is above 0, got ", count, " ms")));
  }
}

TEST(RunRanksTest, AGroupMayHaveATimeoutOfItsOwn) {
  RunRanks(
      2,
      [](World& world) {
        EXPECT_EQ(world.NewGroup("a", {0, 1}, {.timeout = std::chrono::milliseconds(70)})->timeout().count(),
                  70);
        EXPECT_EQ(world.NewGroup("b", {0, 1}, {.backend = Backend::kLocal})->timeout().count(), 1234);
        EXPECT_THAT(MessageOf([&] {
                      world.NewGroup("c", {0, 1}, {.timeout = std::chrono::milliseconds(-1)});
                    }),
                    HasSubstr("group 'c' of ranks [0, 1]: timeout is -1 ms, expected at least 0"));
        for (const Backend backend : {Backend::kGloo, Backend::kMpi, Backend::kNccl}) {
          EXPECT_THAT(
              MessageOf([&] {
                world.NewGroup("d", {0, 1}, {.backend = backend});
              }),
              AllOf(HasSubstr("group 'd' of ranks [0, 1]: backend "), HasSubstr("threads can have local")));
        }
      },
      {.comm_timeout = std::chrono::milliseconds(1234)});
}

TEST(RunRanksTest, GroupsKnowTheirRanks) {
  RunRanks(4, [](World& world) {
    if (world.rank() == 0) return;
    const auto group = world.NewGroup("odd", {1, 2, 3});
    EXPECT_EQ(group->rank(), world.rank() - 1);
    EXPECT_EQ(group->size(), 3);
    EXPECT_EQ(group->ranks(), (std::vector<int>{1, 2, 3}));
    EXPECT_EQ(group->name(), "odd");
  });
}

TEST(RunRanksTest, Misuse) {
  EXPECT_EQ(MessageOf([] { RunRanks(0, [](World&) {}); }), "RunRanks: num_ranks is 0, must be at least 1");
  EXPECT_EQ(
      MessageOf([] { RunRanks(1'000'000, [](World&) {}); }),
      "RunRanks: num_ranks is 1000000, must be at most 1024: more ranks are processes, which a launcher "
      "starts (weft_run)");
  EXPECT_NE(
      MessageOf([] { RunRanks(1, [](World&) {}, {.threads_per_rank = -1}); }).find("threads_per_rank is -1"),
      std::string::npos);
  RunRanks(3, [](World& world) {
    if (world.rank() != 1) return;
    const auto message = [&](const std::vector<int>& ranks) {
      return MessageOf([&] { world.NewGroup("dp", ranks); });
    };
    EXPECT_EQ(message({1, 0}), "group 'dp' of ranks [1, 0]: ranks must ascend, each once");
    EXPECT_EQ(message({1, 1}), "group 'dp' of ranks [1, 1]: ranks must ascend, each once");
    EXPECT_EQ(message({0, 2}), "group 'dp' of ranks [0, 2]: lacks the calling rank 1");
    EXPECT_EQ(message({}), "group 'dp' of ranks []: lacks the calling rank 1");
    EXPECT_EQ(message({1, 3}), "group 'dp' of ranks [1, 3]: the world has ranks 0 to 2");
    EXPECT_EQ(message({-1, 1}), "group 'dp' of ranks [-1, 1]: the world has ranks 0 to 2");
  });
}

TEST(RunRanksTest, NcclNeedsGpusAndAProgramThatHasIt) {
  const auto error = [](const WorldOptions& options) {
    try {
      RunRanks(
          1, [](World&) {}, options);
    } catch (const Error& error) {
      return error.message();
    }
    return std::string("no error");
  };
  EXPECT_EQ(error({.backend = Backend::kNccl}),
            "backend nccl: ranks are on cpu; it moves what is on GPUs: --device=cuda");
  EXPECT_EQ(error({.backend = Backend::kNccl, .device = DeviceType::kCuda}),
            "backend nccl: this program was built without it; build it with --config=cuda");
  EXPECT_EQ(ParseBackend("nccl"), Backend::kNccl);
}

}  // namespace
}  // namespace weft

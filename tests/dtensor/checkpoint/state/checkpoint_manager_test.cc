#include "dtensor/checkpoint/state/checkpoint_manager.h"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dtensor/checkpoint/folder/step_folder.h"
#include "dtensor/checkpoint/folder/step_reader.h"
#include "dtensor/checkpoint/state/shared_folder.h"
#include "dtensor/functions.h"
#include "dtensor/nn/layers/layers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/dtensor/checkpoint/files/crash_files.h"
#include "tests/dtensor/checkpoint/state/state_cases.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kFolder[] = "runs";

TEST(CheckpointManagerTest, KeepsTheNewestSteps) {
  const auto files = std::make_shared<CrashFiles>();
  RunRanks(2, [&](World& world) {
    TestRun run(world, SpreadCases()[1]);
    CheckpointManager manager(world, {.folder = kFolder, .save_every = 10, .keep = 2, .files = files});
    EXPECT_EQ(manager.latest_step(), std::nullopt);
    for (int64_t step = 1; step <= 45; ++step) {
      EXPECT_EQ(manager.IsDue(step), step % 10 == 0);
      EXPECT_EQ(manager.AfterStep(step, run.state), step % 10 == 0);
    }
    manager.Save(45, run.state);
    manager.Save(45, run.state);  // there already
    EXPECT_EQ(manager.latest_step(), 45);
    EXPECT_EQ(manager.last_save().step, 45);
  });
  EXPECT_THAT(ListSteps(*files, kFolder), ElementsAre(40, 45));
  EXPECT_EQ(ReadText(*files, "runs/latest", 100), "step-000000045\n");
  EXPECT_THAT(files->List(kFolder), ElementsAre("latest", "step-000000040", "step-000000045"));
}

// `latest` is a hint: what counts is which step is whole.
TEST(CheckpointManagerTest, TakesTheHighestStepThatIsWhole) {
  const auto files = std::make_shared<CrashFiles>();
  const auto save = [&](int64_t step) {
    RunRanks(1, [&](World& world) {
      TestRun run(world, SpreadCases()[0]);
      CheckpointManager manager(world, {.folder = kFolder, .files = files});
      FillState(run.state, static_cast<uint64_t>(step));
      manager.Save(step, run.state);
    });
  };
  save(1);
  save(2);
  save(3);
  files->Replace("runs/latest", "step-000000099\n");
  files->Damage("runs/step-000000003/manifest.json", 40);
  files->MakeFolder("runs/step-000000004");        // of a crash
  files->MakeFolder("runs/step-000000005.0.tmp");  // likewise
  std::vector<std::string> warnings;
  RunRanks(1, [&](World& world) {
    TestRun run(world, SpreadCases()[0]);
    CheckpointManager manager(world, {.folder = kFolder,
                                      .files = files,
                                      .warn = [&](const std::string& line) { warnings.push_back(line); }});
    EXPECT_EQ(manager.Resume(run.state), 2);
    EXPECT_EQ(CountWrongBytes(run.state, 2), 0);
    EXPECT_EQ(manager.Load(1, run.state), RestoreResult());
    EXPECT_EQ(CountWrongBytes(run.state, 1), 0);
    // A step that is broken gives way; one that is whole does not.
    manager.Save(3, run.state);
    EXPECT_THAT(VerifyStep(*files, kFolder, 3).problems, IsEmpty());
    EXPECT_THAT(MessageOf([&] { manager.Save(1, run.state); }),
                HasSubstr("runs/step-000000001' is there already, and whole"));
  });
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_THAT(warnings[0], HasSubstr("checkpoint not used: "));
  EXPECT_THAT(warnings[0], HasSubstr("step-000000004/manifest.json"));
  EXPECT_THAT(warnings[1],
              HasSubstr("step-000000003/manifest.json' is not a whole manifest: its checksum is"));
  EXPECT_THAT(files->List(kFolder), ElementsAre("latest", "step-000000001", "step-000000002",
                                                "step-000000003", "step-000000003.broken", "step-000000004"));
}

TEST(CheckpointManagerTest, AllThatDoesNotFitIsNamedAtOnce) {
  const auto files = std::make_shared<CrashFiles>();
  RunRanks(2, [&](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
    CheckpointManager manager(world, {.folder = kFolder, .files = files});
    const DTensor a = Full(context, DType::kF32, {3}, 1), b = Full(context, DType::kF32, {4}, 2),
                  c = Full(context, DType::kI64, {}, 3), d = Full(context, DType::kF32, {2}, 4);
    State saved;
    saved.Add("some", TensorsPart({{"a", a}, {"b", b}, {"c", c}, {"old", d}}));
    manager.Save(1, saved);
    State other;
    const DTensor wide = Full(context, DType::kF64, {4}, 0);
    other.Add("some", TensorsPart({{"a", b}, {"b", wide}, {"c", c}, {"new", d}}));
    EXPECT_EQ(MessageOf([&] { manager.Resume(other); }),
              "'runs/step-000000001' does not fit: 'a' is f32[3], expected f32[4]; 'b' is f32[4], expected "
              "f64[4]; it has no 'new'; 'old' is of no part of the state");
    // Parts of it, other names, another dtype.
    State renamed;
    const DTensor target = Full(context, DType::kF32, {2}, 0);
    renamed.Add("wide", TensorsPart({{"b", wide}}));
    renamed.Add("more", TensorsPart({{"new", target}}));
    const auto rename = [](const std::string& name) { return name == "new" ? std::string("old") : name; };
    EXPECT_EQ(manager.Load(1, renamed, {.rename = rename, .strict = false, .cast = true}),
              (RestoreResult{.missing = {}, .unexpected = {"a", "c"}}));
    EXPECT_EQ(wide.FullTensor().ToVector<double>(), std::vector<double>(4, 2));
    EXPECT_EQ(target.FullTensor().ToVector<double>(), std::vector<double>(2, 4));
    EXPECT_EQ(manager.Load(1, renamed, {.parts = {"wide"}, .cast = true}), RestoreResult());
    EXPECT_THAT(MessageOf([&] { manager.Load(1, renamed, {.parts = {"none"}}); }),
                HasSubstr("no part 'none'"));
    EXPECT_THAT(MessageOf([&] { manager.Load(9, saved); }), HasSubstr("step-000000009/manifest.json'"));
  });
}

TEST(CheckpointManagerTest, Misuse) {
  const auto files = std::make_shared<CrashFiles>();
  RunRanks(1, [&](World& world) {
    const auto context = Bind(world, DeviceMesh());
    EXPECT_THAT(MessageOf([&] { CheckpointManager(world, {}); }), HasSubstr("expected a folder"));
    EXPECT_THAT(MessageOf([&] { CheckpointManager(world, {.folder = "a", .keep = -1, .files = files}); }),
                HasSubstr("keep -1"));
    CheckpointManager manager(world, {.folder = kFolder, .files = files});
    const DTensor a = Full(context, DType::kF32, {3}, 1);
    State state;
    state.Add("one", TensorsPart({{"a", a}}));
    EXPECT_THAT(MessageOf([&] { state.Add("one", TensorsPart({})); }), HasSubstr("a part 'one' already"));
    state.Add("two", TensorsPart({{"a", a}}));
    EXPECT_THAT(MessageOf([&] { manager.Save(1, state); }),
                HasSubstr("tensor 'a' of part 'two' stands twice"));
    EXPECT_THAT(MessageOf([&] { manager.Save(-1, state); }), HasSubstr("step -1"));
  });
  RunRanks(2, [&](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
    CheckpointManager manager(world, {.folder = kFolder, .files = files});
    State state;
    const DTensor partial = DTensor::FromLocal(context, Tensor::FromValues<float>({1}, {1}),
                                               Layout(1, 1).WithPartial(0), Shape({1}));
    state.Add("partial", TensorsPart({{"p", partial}}));
    EXPECT_THAT(MessageOf([&] { manager.Save(1, state); }),
                HasSubstr("tensor 'p' is f32[1] [-] P{dp}; expected a layout without Partial"));
  });
}

// Modules' buffers, texts, and parts of a program's own.
TEST(CheckpointManagerTest, BuffersAndTexts) {
  const auto files = std::make_shared<CrashFiles>();
  class Net : public Module {
   public:
    Linear body{this, "body", 5, 5};
    BatchNorm1d norm{this, "norm", 5};
  };
  std::string position = "17";
  for (const char* mesh : {"dp=2", "dp=3"}) {
    const bool is_first = std::string(mesh) == "dp=2";
    RunRanks(is_first ? 2 : 3, [&](World& world) {
      Net net;
      Parallelize(net, world, DeviceMesh::Parse(mesh), {{"", FullyShard("dp")}});
      State state;
      std::string own = is_first ? position : "";
      state.Add("model", MakeModelState(net));
      state.Add("data",
                MakeTextState(
                    "data.position", [&] { return own; }, [&](const std::string& text) { own = text; }));
      CheckpointManager manager(world, {.folder = kFolder, .files = files});
      const DTensor before = net.norm.running_mean->Value();
      if (is_first) {
        net.norm.running_mean->Set(Full(net.context(), DType::kF32, {5}, 3));
        manager.Save(1, state);
        return;
      }
      EXPECT_EQ(manager.Resume(state), 1);
      EXPECT_EQ(own, "17");
      EXPECT_EQ(net.norm.running_mean->Value().FullTensor().ToVector<float>(), std::vector<float>(5, 3));
      EXPECT_EQ(before.FullTensor().ToVector<float>(), std::vector<float>(5, 0));
      State more = state;
      more.Add("other", MakeTextState(
                            "other", [] { return ""; }, [](const std::string&) {}));
      EXPECT_THAT(MessageOf([&] { manager.Resume(more); }), HasSubstr("has no text 'other'"));
    });
  }
}

// A file system of some ranks' own.
TEST(CheckpointManagerTest, RanksThatSeeAnotherFolderAreNamed) {
  std::vector<std::shared_ptr<CrashFiles>> files = {std::make_shared<CrashFiles>(),
                                                    std::make_shared<CrashFiles>()};
  files[1]->MakeFolder(kFolder);
  RunRanks(4, [&](World& world) {
    Agreement agreement(world, std::chrono::minutes(1));
    const std::string message = MessageOf([&] {
      CheckFolderIsShared(agreement, *files[world.rank() % 2], kFolder, std::chrono::milliseconds(100));
    });
    EXPECT_THAT(message, HasSubstr("checkpoint folder 'runs': not seen as rank 0 on "));
    EXPECT_THAT(message, HasSubstr("by rank 1 on "));
    EXPECT_THAT(message, HasSubstr(", rank 3 on "));
    EXPECT_THAT(message, testing::Not(HasSubstr("rank 2")));
  });
  EXPECT_THAT(files[0]->List(kFolder), IsEmpty());
}

// In the background a save is what the state was at the call, whatever becomes of it meanwhile; memory is used again.
TEST(CheckpointManagerTest, SavesInTheBackground) {
  const auto files = std::make_shared<CrashFiles>();
  RunRanks(4, [&](World& world) {
    TestRun run(world, SpreadCases()[5]);
    CheckpointManager manager(world, {.folder = kFolder, .keep = 0, .background = true, .files = files});
    int64_t host_bytes = 0;
    for (int64_t step = 1; step <= 8; ++step) {
      FillState(run.state, static_cast<uint64_t>(step));
      manager.Save(step, run.state);
      FillState(run.state, 1000);
      EXPECT_EQ(manager.host_bytes(), step > 1 ? host_bytes : manager.host_bytes());
      host_bytes = manager.host_bytes();
      EXPECT_EQ(manager.AfterStep(step, run.state), false);
    }
    manager.Wait();
    EXPECT_FALSE(manager.is_saving());
    EXPECT_EQ(manager.last_save().step, 8);
    EXPECT_EQ(manager.last_save().num_bytes, host_bytes);
    for (int64_t step = 1; step <= 8; ++step) {
      manager.Load(step, run.state);
      EXPECT_EQ(CountWrongBytes(run.state, static_cast<uint64_t>(step)), 0) << step;
    }
  });
}

// The rate is for what is written beside training. At this one each save would take a minute.
TEST(CheckpointManagerTest, ASaveThatIsWaitedForKeepsToNoRate) {
  const auto begun = std::chrono::steady_clock::now();
  for (const bool background : {false, true}) {
    const auto files = std::make_shared<CrashFiles>();
    RunRanks(2, [&](World& world) {
      const State state = SmallState(world, 2);
      CheckpointManager manager(
          world, {.folder = kFolder, .background = background, .bytes_per_second = 4, .files = files});
      manager.Save(1, state);
      manager.Save(2, state);  // waits for the first
      manager.Wait();
      EXPECT_GT(manager.last_save().written_bytes, 200);
      manager.Save(3, state);  // for which the destructor waits
    });
    EXPECT_THAT(ListSteps(*files, kFolder), ElementsAre(1, 2, 3));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(30));
}

// A save in the background that fails is told at one of the next steps, on every rank.
TEST(CheckpointManagerTest, AFailureInTheBackgroundIsTold) {
  const auto files = std::make_shared<CrashFiles>();
  RunRanks(2, [&](World& world) {
    TestRun run(world, SpreadCases()[1]);
    CheckpointManager manager(world,
                              {.folder = kFolder, .save_every = 1000, .background = true, .files = files});
    if (world.rank() == 0) files->FailAt(3, absl::StatusCode::kResourceExhausted, /*from_then_on=*/true);
    manager.Save(1, run.state);
    const std::string message = MessageOf([&] {
      for (int64_t step = 2; step < 1000; ++step) {
        manager.AfterStep(step, run.state);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    });
    EXPECT_THAT(message, HasSubstr("No space left on device"));
    EXPECT_EQ(manager.latest_step(), std::nullopt);
    files->FailNever();
    manager.AfterStep(1, run.state);  // told once
  });
}

// A rank that goes under while a save waits for others does not wait for them.
TEST(CheckpointManagerTest, ARoundThatIsGivenUpEnds) {
  const std::string message = MessageOf([] {
    RunRanks(2, [](World& world) {
      Agreement agreement(world, std::chrono::minutes(10));
      if (world.rank() == 1) return world.store().Wait({"given up"}, std::chrono::minutes(1));
      std::string error;
      std::thread waiter([&] { error = MessageOf([&] { agreement.Agree({.part = [] { return ""; }}); }); });
      agreement.Cancel();
      waiter.join();
      EXPECT_EQ(error, "this rank has given the checkpoint up");
      world.store().Set("given up", "");
    });
  });
  EXPECT_EQ(message, "no error");
}

// The first ranks of a world alone: others are spares.
TEST(CheckpointManagerTest, SomeOfTheRanks) {
  const auto files = std::make_shared<CrashFiles>();
  std::vector<int64_t> saved;
  RunRanks(3, [&](World& world) {
    if (world.rank() == 2) {
      EXPECT_THAT(
          MessageOf([&] { CheckpointManager(world, {.folder = kFolder, .num_ranks = 2, .files = files}); }),
          HasSubstr("the first 2 of 3 ranks: rank 2 is not among them"));
      return;
    }
    const State state = SmallState(world, 2);
    CheckpointManager manager(world, {.folder = kFolder,
                                      .background = true,
                                      .num_ranks = 2,
                                      .on_saved = [&](int64_t step) { saved.push_back(step); },
                                      .files = files});
    manager.Save(1, state);
    manager.Save(2, state);
    manager.Wait();
  });
  EXPECT_THAT(saved, ElementsAre(1, 2));
  EXPECT_EQ(ReadManifest(*files, kFolder, 2).world, 2);
}

// One that dies lets the others go.
TEST(CheckpointManagerTest, ARankThatDiesLetsTheOthersGo) {
  const auto files = std::make_shared<CrashFiles>();
  const std::string message = MessageOf([&] {
    RunRanks(3, [&](World& world) {
      Agreement agreement(world, std::chrono::minutes(10));
      if (world.rank() == 1) Throw(absl::StatusCode::kInternal, "gone");
      agreement.Agree({.part = [] { return ""; }});
    });
  });
  EXPECT_EQ(message, "rank 1: gone");
}

// What has not changed is not written again, and steps that are referred to stay as long as they are.
// Of a program that goes back and comes to a step that it has saved last: it is another step of that number.
TEST(CheckpointManagerTest, AStepOfAProgramThatWentBackIsNotTheOneSavedLast) {
  const auto files = std::make_shared<CrashFiles>();
  RunRanks(1, [&](World& world) {
    TestRun run(world, SpreadCases()[0]);
    CheckpointManager manager(world, {.folder = kFolder, .save_every = 1, .files = files});
    FillState(run.state, 1), manager.Save(1, run.state);
    FillState(run.state, 2), manager.Save(2, run.state);
    manager.Load(1, run.state);
    FillState(run.state, 9);
    EXPECT_THAT(MessageOf([&] { manager.AfterStep(2, run.state); }),
                HasSubstr("runs/step-000000002' is there already, and whole"));
    RemoveFolder(*files, "runs/step-000000002");
    EXPECT_TRUE(manager.AfterStep(2, run.state));
    FillState(run.state, 0);
    manager.Load(2, run.state);
    EXPECT_EQ(CountWrongBytes(run.state, 9), 0);
  });
}

}  // namespace
}  // namespace weft

#include "examples/gpt/gpt_flags.h"

#include <cstdio>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "parallel/pipeline/generator.h"
#include "parallel/pipeline/schedule_csv.h"
#include "tests/examples/gpt_run_of.h"

namespace weft {
namespace {

TEST(GptFlagsTest, TheBatchFollowsTheRanksIfAsked) {
  const GptRun half = RunOf(
      {"--batch=32", "--lr=0.4", "--min_lr=0.04", "--mesh=dp=2", "--batch_policy=linear", "--batch_ranks=4"});
  EXPECT_EQ(half.batch, 16);
  EXPECT_EQ(half.asked_batch, 32);
  EXPECT_EQ(half.schedule.peak, 0.2);
  EXPECT_EQ(half.schedule.floor, 0.02);
}

TEST(GptFlagsTest, Defaults) {
  const GptRun run = RunOf({});
  EXPECT_EQ(run.mesh, DeviceMesh::Parse("dp=2,tp=2"));
  EXPECT_EQ(run.plan, GptPlan(run.mesh, DataPlan::kDdp, /*sequence_parallel=*/false));
  EXPECT_EQ(run.model, (GptConfig{.vocabulary = 256, .context = 64, .layers = 4, .heads = 4, .dim = 128}));
  EXPECT_EQ(run.schedule,
            (WarmupCosine{.peak = 1e-3, .floor = 1e-4, .warmup_steps = 100, .total_steps = 2000}));
  EXPECT_EQ(run.adamw, (AdamWOptions{.beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1}));
  EXPECT_EQ(run.grad_clip, 1.0);
  EXPECT_EQ(run.dtype, DType::kF32);
  EXPECT_EQ(run.batch, 12);
  EXPECT_EQ(run.steps, 2000);
  EXPECT_EQ(run.seed, 1337u);
  EXPECT_EQ(run.threads_per_rank, 0);
  EXPECT_EQ(run.eval_every, 250);
  EXPECT_EQ(run.eval_batches, 20);
  EXPECT_EQ(run.sample, 500);
  EXPECT_EQ(run.log_every, 10);
  EXPECT_FALSE(run.json);
  EXPECT_FALSE(run.check_issue_order);
  EXPECT_FALSE(run.print_plan);
}

TEST(GptFlagsTest, TheLossScaleIsOfF16) {
  EXPECT_FALSE(RunOf({}).loss_scale);
  EXPECT_EQ(RunOf({"--dtype=f16"}).loss_scale, LossScaleOptions());
  EXPECT_EQ(RunOf({"--dtype=f16", "--loss_scale=64", "--loss_scale_window=7", "--loss_scale_hysteresis=3",
                   "--min_loss_scale=2"})
                .loss_scale,
            (LossScaleOptions{.initial = 64, .interval = 7, .min = 2, .hysteresis = 3}));
  EXPECT_EQ(
      MessageOf({"--loss_scale_hysteresis=3"}),
      "--loss_scale_hysteresis=3: it is of --dtype=f16 and of plans that compute in f16, got --dtype=f32");
  EXPECT_EQ(MessageOf({"--dtype=f16", "--loss_scale=1", "--min_loss_scale=2"}),
            "--min_loss_scale=2: expected a number from 0 to --loss_scale=1");
  EXPECT_EQ(RunOf({"--dtype=f16", "--loss_scale=64", "--loss_scale_window=0"}).loss_scale,
            (LossScaleOptions{.initial = 64, .interval = 0}));
  for (const char* flag : {"--loss_scale_hysteresis=3", "--min_loss_scale=2"}) {
    EXPECT_EQ(MessageOf({"--dtype=f16", "--loss_scale_window=0", flag}),
              std::string(flag) + ": expected a scale that changes, got --loss_scale_window=0");
  }
}

TEST(GptFlagsTest, ReshardReachesTheUnits) {
  const auto plan = [](const char* flag) { return RunOf({"--mesh=dp=4", "--plan=fsdp", flag}).plan; };
  const Style always = FullyShard("dp"), never = FullyShard("dp", {.reshard = Reshard::kNever});
  EXPECT_EQ(plan("--reshard=always"), (Plan{{"blocks.*", always}, {"", always}}));
  EXPECT_EQ(plan("--reshard=never"), (Plan{{"blocks.*", never}, {"", never}}));
  // The root's unit stays whole in any case.
  EXPECT_EQ(plan("--reshard=2"), (Plan{{"blocks.*", FullyShard("dp", {.reshard_to = 2})}, {"", always}}));
  const Style never_of_shard = FullyShard("shard", {.reshard = Reshard::kNever});
  EXPECT_EQ(RunOf({"--mesh=replica=2,shard=2", "--plan=hsdp", "--reshard=never"}).plan,
            (Plan{{"blocks.*", never_of_shard}, {"", never_of_shard}, {"", DataParallel("replica")}}));
  // Other plans gather no parameters.
  EXPECT_EQ(MessageOf({"--mesh=dp=4", "--reshard=never"}),
            "--reshard=never: expected --plan=fsdp or hsdp, got --plan=ddp");
  EXPECT_EQ(MessageOf({"--mesh=dp=4", "--plan=zero2", "--prefetch=2"}),
            "--prefetch=2: expected --plan=fsdp or hsdp, got --plan=zero2");
  EXPECT_EQ(RunOf({"--mesh=dp=4", "--reshard=always", "--prefetch=1"}).plan, RunOf({"--mesh=dp=4"}).plan);
}

TEST(GptFlagsTest, FlagsReachTheRun) {
  const GptRun run =
      RunOf({"--mesh=tp=2, dp=3", "--plan=fsdp", "--sequence-parallel", "--layers=2", "--heads=6", "--dim=48",
             "--context=32", "--vocab_size=300", "--dropout=0.25", "--batch=9", "--steps=7", "--dtype=f64",
             "--threads=2", "--lr=0.5", "--grad_clip=0", "--log_format=json", "--sample=0"});
  EXPECT_EQ(run.plan, GptPlan(run.mesh, DataPlan::kFsdp, /*sequence_parallel=*/true));
  EXPECT_EQ(
      run.model,
      (GptConfig{.vocabulary = 300, .context = 32, .layers = 2, .heads = 6, .dim = 48, .dropout = 0.25}));
  EXPECT_EQ(run.schedule.peak, 0.5);
  EXPECT_EQ(run.schedule.total_steps, 7);
  EXPECT_EQ(run.grad_clip, 0);
  EXPECT_EQ(run.dtype, DType::kF64);
  EXPECT_EQ(run.threads_per_rank, 2);
  EXPECT_TRUE(run.json);
  EXPECT_EQ(run.sample, 0);
}

TEST(GptFlagsTest, ASingleRankIsTheEmptyMeshOrOneOfOne) {
  EXPECT_EQ(RunOf({"--mesh="}).mesh.num_ranks(), 1);
  EXPECT_EQ(RunOf({"--mesh="}).plan, Plan());
  EXPECT_EQ(RunOf({"--mesh=dp=1"}).mesh.num_ranks(), 1);
}

TEST(GptFlagsTest, AMeshMayFollowTheRanks) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const GptRun run = RunOf({"--mesh=dp=auto"});
  EXPECT_EQ(run.mesh, DeviceMesh({{"dp", cores}}));
  EXPECT_TRUE(run.allow_spares);
  EXPECT_FALSE(RunOf({}).allow_spares);
  EXPECT_EQ(RunOf({"--mesh_choices=dp=4096;tp=1,dp=1;"
                   "dp=1"})
                .mesh,
            DeviceMesh::Parse("tp=1,dp=1"));
  EXPECT_EQ(MessageOf({"--mesh_choices=dp=1", "--mesh=dp=auto"}),
            "--mesh_choices=dp=1: expected no --mesh beside it, got --mesh=dp=auto");
  // Batches need not divide: some ranks have fewer rows, or none.
  EXPECT_EQ(RunOf({"--mesh=dp=5"}).batch, 12);
  EXPECT_EQ(RunOf({"--mesh=dp=2", "--microbatches=12"}).microbatches, 12);
  // Nor do microbatches.
  EXPECT_EQ(RunOf({"--mesh=pp=2,dp=2,tp=2", "--schedule=1f1b", "--microbatches=8"}).microbatches, 8);
}

// A batch that follows the ranks stays a multiple of the microbatches, where it is one, and never has fewer rows.
TEST(GptFlagsTest, MicrobatchesOfABatchThatFollowsTheRanks) {
  const auto batch = [](int microbatches, const std::string& mesh) {
    return RunOf({"--mesh=" + mesh, "--batch_ranks=8", "--batch_policy=linear",
                  absl::StrCat("--microbatches=", microbatches)})
        .batch;
  };
  EXPECT_EQ(batch(4, "dp=6"), 8);  // of 9, between 8 and 12
  EXPECT_EQ(batch(8, "dp=6"), 9);
  EXPECT_EQ(batch(8, "dp=4"), 8);  // of 6
  EXPECT_EQ(batch(12, "dp=4"), 12);
}

TEST(GptFlagsTest, ThePresetIsGpt2) {
  const GptRun run = RunOf({"--mesh=", "--model=gpt2-124M"});
  EXPECT_EQ(run.model, GptConfig::Gpt2_124M());
  Gpt model(run.model);
  int64_t count = 0;
  for (const Parameter* parameter : model.AllParameters()) count += parameter->spec().shape.num_elements();
  EXPECT_EQ(count, 124439808);
  EXPECT_EQ(RunOf({"--model=gpt2-124M", "--context=64"}).model.context, 64);
  for (const char* given : {"--layers=6", "--heads=6", "--dim=384"}) {
    EXPECT_EQ(MessageOf({"--model=gpt2-124M", given}),
              absl::StrCat(given, ": the preset says so itself (--model=gpt2-124M)"));
  }
}

TEST(GptFlagsTest, APlanOfOnesOwnComesFromAFile) {
  const std::string path = testing::TempDir() + "/plan.json";
  const Plan plan = {{"blocks.*.mlp.up", ColumnParallel("a")}, {"", DataParallel("b")}};
  std::ofstream(path) << plan.ToJson();
  EXPECT_EQ(RunOf({"--mesh=a=2,b=3", "--plan=" + path}).plan, plan);
  EXPECT_EQ(MessageOf({"--plan=" + path, "--sequence_parallel"}),
            "--sequence_parallel: a plan of your own says so itself (--plan=" + path + ")");
  EXPECT_EQ(MessageOf({"--plan=" + path, "--prefetch=2"}),
            "--prefetch: a plan of your own says so itself (--plan=" + path + ")");
  std::remove(path.c_str());
}

// What is asked for is done; where nothing is, less memory is a way out.
TEST(GptFlagsTest, RecomputeAuto) {
  const auto names = [](const std::vector<std::string>& arguments) {
    std::vector<std::string> names;
    for (const NamedPlan& plan : RunOf(arguments).plans) names.push_back(plan.name);
    return names;
  };
  EXPECT_EQ(names({}),
            (std::vector<std::string>{"--recompute=none", "--recompute=selective", "--recompute=full"}));
  EXPECT_EQ(names({"--recompute=selective"}), (std::vector<std::string>{"--recompute=selective"}));
  const GptRun run = RunOf({"--mesh=dp=2"});
  EXPECT_EQ(run.plan, run.plans[0].plan);
  for (const char* recompute : {"none", "selective", "full"}) {
    const GptRun one = RunOf({"--mesh=dp=2", std::string("--recompute=") + recompute});
    ASSERT_EQ(one.plans.size(), 1);
    EXPECT_EQ(one.plan, run.plans[recompute == std::string("none")   ? 0
                                  : recompute == std::string("full") ? 2
                                                                     : 1]
                            .plan);
  }
  EXPECT_EQ(RunOf({}).device_options.cap_bytes, 0);
  EXPECT_EQ(RunOf({"--memory_gb=1.5"}).device_options.cap_bytes, 1'500'000'000);
  EXPECT_EQ(MessageOf({"--memory_gb=-1"}).substr(0, 15), "--memory_gb=-1:");
}

TEST(GptFlagsTest, AnAxisPpHasASchedule) {
  EXPECT_FALSE(RunOf({}).pipeline_schedule.has_value());
  const GptRun run = RunOf({"--mesh=pp=2, dp=2", "--microbatches=3"});
  EXPECT_EQ(run.pipeline_schedule->name, "1f1b");
  EXPECT_EQ(run.pipeline_schedule->num_microbatches, 3);
  EXPECT_EQ(run.plan, (Plan{{"blocks.*", Pipeline("pp")}, {"", DataParallel("dp")}}));
  const auto entry = [](const std::vector<std::string>& arguments) {
    return RunOf(arguments).plan.entries()[0].style;
  };
  EXPECT_EQ(entry({"--mesh=pp=2", "--schedule=zbv", "--microbatches=4"}),
            Pipeline("pp", {.chunks = 2, .order = StageOrder::kV}));
  EXPECT_EQ(entry({"--mesh=pp=2", "--schedule=interleaved", "--chunks=3", "--microbatches=4"}),
            Pipeline("pp", {.chunks = 3}));
  EXPECT_EQ(entry({"--mesh=pp=2", "--segment_costs=0,1,2.5,1e-3", "--microbatches=2"}),
            Pipeline("pp", {.costs = {0, 1, 2.5, 1e-3}}));
  EXPECT_FALSE(run.measures_segments);
  const GptRun measures = RunOf({"--mesh=pp=2, dp=2", "--microbatches=3", "--segment_costs=measured"});
  EXPECT_TRUE(measures.measures_segments);
  EXPECT_EQ(measures.plan, run.plan);
  for (const char* costs : {"guessed", "1,,2", "1,-2", "1,inf", ""}) {
    EXPECT_EQ(MessageOf({"--mesh=pp=2", "--microbatches=2", absl::StrCat("--segment_costs=", costs)}),
              absl::StrCat("--segment_costs=", costs,
                           ": expected counted, measured, or numbers of 0 or more with commas"));
  }
  EXPECT_EQ(MessageOf({"--mesh=dp=2", "--segment_costs=measured"}),
            "--segment_costs: the mesh (dp=2) has no axis pp");

  const std::string path = testing::TempDir() + "/schedule.csv";
  std::ofstream(path) << ScheduleToCsv(GenerateSchedule("v_min", {.ranks = 2, .microbatches = 4}));
  EXPECT_EQ(entry({"--mesh=pp=2", "--schedule=" + path, "--microbatches=4"}),
            Pipeline("pp", {.chunks = 2, .order = StageOrder::kV}));
  EXPECT_EQ(MessageOf({"--mesh=pp=3", "--schedule=" + path, "--microbatches=4"}),
            "--schedule=" + path +
                ": it is made for 2 ranks and 4 microbatches, the mesh (pp=3) has 3 and --microbatches=4");
  EXPECT_EQ(MessageOf({"--mesh=pp=2", "--chunks=2", "--schedule=" + path, "--microbatches=4"}),
            "--chunks: the file says so itself (--schedule=" + path + ")");
  std::remove(path.c_str());
  EXPECT_EQ(MessageOf({"--mesh=dp=2", "--schedule=zbv"}), "--schedule: the mesh (dp=2) has no axis pp");
  // Without those that update within the step.
  EXPECT_EQ(
      MessageOf({"--mesh=pp=2", "--schedule=zvb"}),
      "--schedule=zvb: expected one of 1f1b, dualpipev, gpipe, interleaved, interleaved_zb, looped_bfs, "
      "v_half, v_min, zb_h1, zb_h2, zbv, or a FILE.csv");
  EXPECT_EQ(
      MessageOf({"--mesh=pp=2", "--schedule=pipedream", "--microbatches=4"}),
      "--schedule=pipedream: it updates parameters within the step (OPT): expected one that leaves them to "
      "the optimizer after the step");

  const std::string plan = testing::TempDir() + "/staged_plan.json";
  std::ofstream(plan) << Plan{{"blocks.*", Pipeline("stages")}}.ToJson();
  EXPECT_EQ(MessageOf({"--mesh=stages=2", "--plan=" + plan}),
            "--plan=" + plan + ": it cuts the model along axis 'stages'; schedules run along an axis 'pp'");
  std::ofstream(plan) << Plan{{"blocks.*", Pipeline("pp")}}.ToJson();
  EXPECT_EQ(MessageOf({"--mesh=pp=2", "--microbatches=2", "--plan=" + plan, "--segment_costs=measured"}),
            "--segment_costs: a plan of your own says so itself (--plan=" + plan + ")");
  std::ofstream(plan) << Plan{{"", DataParallel("pp")}}.ToJson();
  EXPECT_EQ(
      MessageOf({"--mesh=pp=2", "--plan=" + plan}),
      "--plan=" + plan + ": the mesh (pp=2) has an axis pp, along which no entry cuts the model (Pipeline)");
  std::remove(plan.c_str());
}

TEST(GptFlagsTest, AnAxisPpGathersAsItsScheduleSays) {
  const auto message = [](const char* flag) {
    return MessageOf({"--mesh=pp=2, dp=2", "--plan=fsdp", "--microbatches=2", flag});
  };
  EXPECT_EQ(message("--reshard=never"), "no error");
  EXPECT_EQ(message("--reshard=2"),
            "--reshard=2: expected always or never with an axis pp: the schedule gathers whole units");
  EXPECT_EQ(message("--prefetch=3"),
            "--prefetch=3: expected none with an axis pp: the schedule says when units are gathered");
}

// Each start of a job takes one of the meshes, by its ranks: what one has no use for is of another.
TEST(GptFlagsTest, OneOfSeveralMeshesMayHaveNoUseForAFlag) {
  const std::vector<std::string> flags = {"--plan=fsdp", "--microbatches=2", "--prefetch=3", "--reshard=2"};
  const auto with = [&](const std::string& mesh) {
    std::vector<std::string> arguments = flags;
    arguments.push_back(mesh);
    return arguments;
  };
  EXPECT_EQ(MessageOf(with("--mesh_choices=dp=4096;pp=1,dp=1")), "no error");
  const GptRun pipeline = RunOf(with("--mesh_choices=dp=4096;pp=1,dp=1"));
  EXPECT_EQ(pipeline.mesh, DeviceMesh::Parse("pp=1,dp=1"));
  EXPECT_EQ(pipeline.plan, RunOf({"--plan=fsdp", "--microbatches=2", "--mesh=pp=1,dp=1"}).plan);
  EXPECT_EQ(pipeline.unused_flags,
            (std::vector<std::string>{
                "--prefetch=3: expected none with an axis pp: the schedule says when units are gathered",
                "--reshard=2: expected always or never with an axis pp: the schedule gathers whole units"}));
  const GptRun split = RunOf(with("--mesh_choices=pp=4096;dp=1"));
  EXPECT_EQ(split.unused_flags, std::vector<std::string>{"--reshard=2: the mesh (dp=1) has no such groups"});
  EXPECT_EQ(split.plan, RunOf({"--plan=fsdp", "--microbatches=2", "--prefetch=3", "--mesh=dp=1"}).plan);

  const std::vector<std::string> of_stages = {"--mesh_choices=pp=4096;dp=1", "--schedule=interleaved",
                                              "--chunks=2", "--segment_costs=measured"};
  EXPECT_EQ(MessageOf(of_stages), "no error");
  const GptRun whole = RunOf(of_stages);
  EXPECT_FALSE(whole.pipeline_schedule.has_value());
  EXPECT_FALSE(whole.measures_segments);
  EXPECT_EQ(whole.unused_flags,
            (std::vector<std::string>{"--schedule: the mesh (dp=1) has no axis pp",
                                      "--chunks: the mesh (dp=1) has no axis pp",
                                      "--segment_costs: the mesh (dp=1) has no axis pp"}));
  EXPECT_EQ(whole.plan, RunOf({"--mesh=dp=1"}).plan);
  const GptRun of_dp = RunOf({"--mesh_choices=dp=4096,tp=2;dp=1", "--sequence_parallel"});
  EXPECT_EQ(of_dp.unused_flags,
            std::vector<std::string>{"--sequence_parallel: the mesh (dp=1) has no axis tp"});
  EXPECT_EQ(of_dp.plan, RunOf({"--mesh=dp=1"}).plan);
  // There is none to print.
  EXPECT_EQ(MessageOf({"--mesh_choices=pp=4096;dp=1", "--print_schedule"}),
            "--print_schedule: the mesh (dp=1) has no axis pp");
}

TEST(GptFlagsTest, MistakesAreOneClearLine) {
  EXPECT_EQ(MessageOf({"--mesh=dp=2,tp=3"}),
            "--heads=4: the mesh (dp=2, tp=3) splits the heads 3 ways, which does not divide them");
  EXPECT_EQ(MessageOf({"--mesh=dp=2,ep=2"}),
            "mesh axis 'ep' means nothing to plan ddp: expected dp, tp or pp, or a plan of your own "
            "(--plan=FILE.json)");
  EXPECT_EQ(
      MessageOf({"--mesh=dp=2", "--plan=hsdp"}),
      "mesh axis 'dp' means nothing to plan hsdp: expected replica, shard, tp or pp, or a plan of your own "
      "(--plan=FILE.json)");
  EXPECT_EQ(MessageOf({"--mesh=shard=2", "--plan=hsdp"}),
            "plan hsdp needs axes 'replica' and 'shard'; the mesh is 'shard=2'");
  EXPECT_EQ(MessageOf({"--mesh=dp=2", "--sequence_parallel"}),
            "sequence_parallel needs an axis 'tp'; the mesh is 'dp=2'");
  EXPECT_EQ(MessageOf({"--mesh=tp=2", "--plan=fsdp"}), "plan fsdp needs an axis 'dp'; the mesh is 'tp=2'");
  EXPECT_EQ(MessageOf({"--plan=zero"}), "--plan=zero: expected ddp, zero1, zero2, fsdp, hsdp or a FILE.json");
  EXPECT_EQ(MessageOf({"--microbatches=13"}), "--microbatches=13: expected 1 to --batch=12");
  EXPECT_EQ(MessageOf({"--microbatches=0"}), "--microbatches=0: expected 1 or more");
  // Not the number of which 32 bits are left.
  EXPECT_EQ(MessageOf({"--batch=4294967298", "--microbatches=4294967298"}),
            "--microbatches=4294967298: expected 1 to 2147483647");
  EXPECT_EQ(MessageOf({"--mesh=pp=2", "--chunks=4294967298"}),
            "--chunks=4294967298: expected 0 to 2147483647");
  for (const char* threads : {"--data_threads=2147483648", "--data_threads=4294967296"}) {
    EXPECT_EQ(MessageOf({threads}), absl::StrCat(threads, ": expected 0 to 2147483647"));
  }
  EXPECT_EQ(MessageOf({"--data_threads=-1"}), "--data_threads=-1: expected 0 or more");
  EXPECT_EQ(MessageOf({"--reshard=1"}), "--reshard=1: expected always, never or a whole number of 2 or more");
  EXPECT_EQ(MessageOf({"--bucket_mb=0"}), "--bucket_mb=0: expected at least 1e-06 and below 1e+06");
  EXPECT_EQ(MessageOf({"--prefetch=-1"}), "--prefetch=-1: expected 0 or more");
  EXPECT_EQ(
      MessageOf({"--lane_priority", "--overlap=false"}),
      "scheduler: lane_priority=true: expected overlap=true, got overlap=false: one operation runs at a "
      "time then");
  EXPECT_EQ(MessageOf({"--model=gpt3"}), "--model=gpt3: expected gpt2-124M, or nothing");
  EXPECT_EQ(MessageOf({"--layers=0"}), "--layers=0: expected 1 or more");
  EXPECT_EQ(MessageOf({"--heads=5"}), "--heads=5: expected a divisor of --dim=128");
  EXPECT_EQ(MessageOf({"--vocab_size=100"}), "--vocab_size=100: expected at least the tokenizer's 256");
  EXPECT_EQ(MessageOf({"--vocab_size=-1"}), "--vocab_size=-1: expected 0 or more");
  EXPECT_EQ(MessageOf({"--dropout=1"}), "--dropout=1: expected at least 0 and below 1");
  EXPECT_EQ(MessageOf({"--lr=nan"}), "--lr=nan: expected at least 0 and below 1e+09");
  EXPECT_EQ(MessageOf({"--steps=0"}), "--steps=0: expected 1 or more");
  EXPECT_EQ(MessageOf({"--threads=many"}), "--threads=many: expected auto or a whole number of 1 or more");
  EXPECT_EQ(MessageOf({"--threads=0"}), "--threads=0: expected auto or a whole number of 1 or more");
  EXPECT_EQ(MessageOf({"--backend=rsh"}).substr(0, 14), "--backend=rsh:");
  EXPECT_EQ(MessageOf({"--device=tpu"}), "--device=tpu: expected one of auto, cpu, cuda");
  EXPECT_EQ(MessageOf({"--dtype=i32"}).substr(0, 12), "--dtype=i32:");
  EXPECT_EQ(MessageOf({"--log_format=xml"}).substr(0, 17), "--log_format=xml:");
}

// A plan of one's own may leave the heads whole, whatever its axes are called.
TEST(GptFlagsTest, HeadsAreDividedByAPlanThatSplitsThem) {
  const std::string path = testing::TempDir() + "/whole_heads.json";
  std::ofstream(path) << Plan{{"", DataParallel("tp")}}.ToJson();
  EXPECT_EQ(MessageOf({"--mesh=tp=3", "--plan=" + path}), "no error");
  std::remove(path.c_str());
}

// A flag that would change nothing is refused.
TEST(GptFlagsTest, WhatMeansNothingIsAMistake) {
  EXPECT_EQ(MessageOf({"--mesh=tp=2", "--communication=int8"}),
            "--communication=int8: the mesh (tp=2) has no axis dp, replica or shard");
  const GptRun of_tp = RunOf({"--mesh_choices=dp=4096;tp=1", "--communication=int8"});
  EXPECT_EQ(of_tp.mesh, DeviceMesh::Parse("tp=1"));
  EXPECT_EQ(
      of_tp.unused_flags,
      std::vector<std::string>{"--communication=int8: the mesh (tp=1) has no axis dp, replica or shard"});
  EXPECT_EQ(MessageOf({"--device=cpu", "--tf32"}), "--tf32: expected a GPU, got --device=cpu");
  EXPECT_TRUE(RunOf({"--tf32"}).device_options.allow_tf32);
  EXPECT_EQ(MessageOf({"--offload_folder=/nowhere"}), "--offload_folder=/nowhere: expected --offload, too");
  const std::string path = testing::TempDir() + "/offload_plan.json";
  std::ofstream(path) << Plan{{"", Offload({.state = true})}}.ToJson();
  EXPECT_EQ(RunOf({"--offload_folder=/nowhere", "--plan=" + path}).device_options.offload_folder, "/nowhere");
  std::remove(path.c_str());
}

TEST(GptFlagsTest, EveryFlagIsInTheHelp) {
  const std::string help = FlagsHelp(TrainGptUsage());
  const std::string flags =
      "mesh plan sequence_parallel backend device threads tf32 model layers heads dim "
      "vocab_size context batch steps lr min_lr min_lr_ratio loss_scale_window "
      "loss_scale_hysteresis min_loss_scale warmup weight_decay beta1 beta2 grad_clip "
      "dropout seed dtype data tokenizer val_fraction eval_every eval_batches sample "
      "log_every log_format print_plan schedule chunks segment_costs print_schedule "
      "check_issue_order";
  for (const absl::string_view flag : absl::StrSplit(flags, ' ')) {
    EXPECT_NE(help.find(absl::StrCat("--", flag, "=")), std::string::npos) << flag;
  }
}

}  // namespace
}  // namespace weft

#include "tools/launcher/launch_options.h"

#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/reflection.h"
#include "gtest/gtest.h"
#include "runtime/base/config_file.h"
#include "runtime/base/error.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using Words = std::vector<std::string>;

LaunchOptions Parse(const Words& words) {
  std::vector<const char*> argv = {"weft_run"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  return ParseLaunchOptions(static_cast<int>(argv.size()), argv.data());
}

// What a command line gives. Flags are as they were afterwards.
LaunchOptions OptionsOf(const Words& words) {
  const absl::FlagSaver saver;
  return Parse(words);
}

// What the file that --print_config writes of `flags` gives.
LaunchOptions OptionsOfPrinted(Words flags, const std::string& program) {
  const std::string path = testing::TempDir() + "/printed.json";
  flags.push_back("--print_config");
  {
    const absl::FlagSaver saver;
    EXPECT_TRUE(Parse(flags).print_config);
    std::ofstream(path) << EffectiveConfig(WeftRunUsage());
  }
  const LaunchOptions options = OptionsOf({"--config=" + path, program});
  std::remove(path.c_str());
  return options;
}

std::string MessageFor(const Words& words) {
  return InvalidArgumentMessage([&] { OptionsOf(words); });
}

TEST(LaunchOptionsTest, Defaults) {
  const LaunchOptions options = OptionsOf({"train"});
  EXPECT_EQ(options.meeting, Meeting::kStandalone);
  EXPECT_EQ(options.min_nodes, 1);
  EXPECT_EQ(options.max_nodes, 1);
  EXPECT_EQ(options.workers_per_node, 1);
  EXPECT_EQ(options.address, "127.0.0.1");
  EXPECT_EQ(options.port, 0);
  EXPECT_EQ(options.run_id, "");
  EXPECT_EQ(options.max_restarts, 0);
  EXPECT_EQ(options.monitor_interval.count(), 100);
  EXPECT_EQ(options.join_timeout.count(), 600'000);
  EXPECT_EQ(options.last_call.count(), 30'000);
  EXPECT_EQ(options.name_timeout.count(), 0);
  EXPECT_EQ(options.log_dir, "");
  EXPECT_FALSE(options.tee.has_value());
  EXPECT_EQ(options.command, Words({"train"}));
  EXPECT_FALSE(options.help);
}

TEST(LaunchOptionsTest, OwnFlagsEndWhereTheProgramBegins) {
  const Words program = {"train", "--nproc-per-node=9", "--", "-x", "--help"};
  for (const Words& flags : std::vector<Words>{{"--nproc-per-node=4"},
                                               {"--nproc_per_node=4"},
                                               {"--nproc-per-node", "4"},
                                               {"-nproc_per_node", "4"},
                                               {"--nproc-per-node=2", "--standalone", "--nproc-per-node=4"},
                                               {"--nproc-per-node=4", "--"}}) {
    Words words = flags;
    words.insert(words.end(), program.begin(), program.end());
    const LaunchOptions options = OptionsOf(words);
    EXPECT_EQ(options.workers_per_node, 4) << flags.front();
    EXPECT_EQ(options.command, program) << flags.front();
  }
  EXPECT_EQ(OptionsOf({"--", "--train"}).command, Words({"--train"}));
}

TEST(LaunchOptionsTest, HelpIsAskedForBeforeTheProgramAlone) {
  EXPECT_TRUE(OptionsOf({"--help"}).help);
  EXPECT_TRUE(OptionsOf({"--version", "train"}).version);
  EXPECT_FALSE(OptionsOf({"train", "--version"}).version);
  EXPECT_TRUE(OptionsOf({"--print_config", "train"}).print_config);
  EXPECT_FALSE(OptionsOf({"train", "--print_config"}).print_config);
  EXPECT_TRUE(OptionsOf({"--nnodes=2", "-h", "train"}).help);
  EXPECT_FALSE(OptionsOf({"train", "--help"}).help);
  for (const char* flag : {"--nnodes=1", "--nproc_per_node=1", "--rdzv_endpoint", "--rdzv_backend",
                           "--rdzv_id", "--rdzv_conf", "--node_rank", "--master_addr", "--master_port",
                           "--max_restarts", "--monitor_interval", "--log_dir", "--tee", "--standalone"}) {
    EXPECT_NE(FlagsHelp(WeftRunUsage()).find(flag), std::string::npos) << flag;
  }
}

TEST(LaunchOptionsTest, WorkersByCore) {
  const int cores = OptionsOf({"--nproc-per-node=auto", "train"}).workers_per_node;
  EXPECT_GE(cores, 1);
  EXPECT_LE(cores, static_cast<int>(std::thread::hardware_concurrency()));
  EXPECT_EQ(OptionsOf({"--nproc-per-node=cpu", "train"}).workers_per_node, cores);
}

TEST(LaunchOptionsTest, Static) {
  const LaunchOptions options = OptionsOf({"--nnodes=3", "--node-rank=2", "--master-addr=node0",
                                           "--master-port", "1234", "--rdzv-id=j", "train"});
  EXPECT_EQ(options.meeting, Meeting::kStatic);
  EXPECT_EQ(options.min_nodes, 3);
  EXPECT_EQ(options.max_nodes, 3);
  EXPECT_EQ(options.node_rank, 2);
  EXPECT_EQ(options.address, "node0");
  EXPECT_EQ(options.port, 1234);
  EXPECT_EQ(options.run_id, "j");
  const LaunchOptions plain =
      OptionsOf({"--nnodes=2", "--node-rank=0", "--master-addr=a", "--rdzv-backend=static", "train"});
  EXPECT_EQ(plain.meeting, Meeting::kStatic);
  EXPECT_EQ(plain.port, 29500);
  EXPECT_EQ(plain.run_id, "none");
}

TEST(LaunchOptionsTest, Dynamic) {
  for (const char* backend : {"", "--rdzv-backend=c10d", "--rdzv-backend=weft"}) {
    Words words = {"--nnodes=1:4", "--rdzv-endpoint=node0:7", "train"};
    if (*backend != '\0') words.insert(words.begin(), backend);
    const LaunchOptions options = OptionsOf(words);
    EXPECT_EQ(options.meeting, Meeting::kDynamic);
    EXPECT_EQ(options.min_nodes, 1);
    EXPECT_EQ(options.max_nodes, 4);
    EXPECT_EQ(options.address, "node0");
    EXPECT_EQ(options.port, 7);
  }
  EXPECT_EQ(OptionsOf({"--nnodes=2", "--rdzv-endpoint=node0", "t"}).port, 29400);
  EXPECT_EQ(OptionsOf({"--nnodes=2", "--rdzv-endpoint=[fd00::1]:9", "t"}).address, "fd00::1");
  EXPECT_EQ(OptionsOf({"--nnodes=2", "--rdzv-endpoint=[fd00::1]", "t"}).port, 29400);
  EXPECT_EQ(OptionsOf({"--rdzv-endpoint=node0", "t"}).meeting, Meeting::kDynamic);  // a job of one node
}

TEST(LaunchOptionsTest, AStoreApart) {
  const LaunchOptions options = OptionsOf({"--store=[::1]:5", "--nnodes=2:3", "--store-grace=2m", "train"});
  EXPECT_EQ(options.meeting, Meeting::kDynamic);
  EXPECT_TRUE(options.store_apart);
  EXPECT_EQ(options.address, "::1");
  EXPECT_EQ(options.port, 5);
  EXPECT_EQ(options.max_nodes, 3);
  EXPECT_EQ(options.run_id, "none");
  EXPECT_EQ(options.store_grace, std::chrono::minutes(2));
  EXPECT_EQ(options.suspicion_time, std::chrono::seconds(5));
  // One node too: its store is elsewhere.
  EXPECT_EQ(OptionsOf({"--store=a", "train"}).meeting, Meeting::kDynamic);
  EXPECT_EQ(OptionsOf({"--suspicion_time=1500ms", "train"}).suspicion_time, std::chrono::milliseconds(1500));
  EXPECT_EQ(options.stop_grace, std::chrono::seconds(30));
  EXPECT_EQ(OptionsOf({"--stop-grace=2m", "train"}).stop_grace, std::chrono::minutes(2));
}

TEST(LaunchOptionsTest, WaitsAndOutput) {
  const LaunchOptions options = OptionsOf(
      {"--monitor-interval=0.25", "--max-restarts=3", "--log-dir=logs", "--tee=0:3,1:2",
       "--rdzv-conf=join_timeout=7,last_call_timeout=0.5,name_timeout=9", "--nproc-per-node=3", "train"});
  EXPECT_EQ(options.monitor_interval.count(), 250);
  EXPECT_EQ(options.max_restarts, 3);
  EXPECT_EQ(options.log_dir, "logs");
  EXPECT_EQ(options.join_timeout.count(), 7000);
  EXPECT_EQ(options.last_call.count(), 500);
  EXPECT_EQ(options.name_timeout.count(), 9000);
  ASSERT_TRUE(options.tee.has_value());
  EXPECT_TRUE(options.tee->Stdout(0) && options.tee->Stderr(0));
  EXPECT_TRUE(!options.tee->Stdout(1) && options.tee->Stderr(1));
  EXPECT_TRUE(!options.tee->Stdout(2) && !options.tee->Stderr(2));
  EXPECT_TRUE(OptionsOf({"--tee=1", "t"}).tee->Stdout(5));
  EXPECT_FALSE(OptionsOf({"--tee=1", "t"}).tee->Stderr(5));
}

// Such a file names every flag: those of other ways to meet have their defaults there, and do not count as given.
TEST(LaunchOptionsTest, APrintedFileMeansTheSame) {
  const std::vector<Words> cases = {
      {},
      {"--standalone", "--nproc-per-node=4", "--tee=0:3,1:2", "--stop-grace=90s"},
      {"--master-port=1234", "--master-addr=node0"},
      {"--node-rank=0", "--master-port=29500"},
      {"--nnodes=3", "--node-rank=2", "--master-addr=node0", "--rdzv-id=j"},
      {"--nnodes=2", "--node-rank=0", "--master-addr=a", "--master-port=7", "--rdzv-backend=static"},
      {"--nnodes=1:4", "--rdzv-endpoint=node0:7", "--rdzv-conf=join_timeout=7"},
      {"--nnodes=2", "--rdzv-endpoint=node0", "--rdzv-backend=c10d", "--monitor-interval=0.25"},
      {"--store=[::1]:5", "--nnodes=2:3", "--store-grace=2m", "--max-restarts=3"},
  };
  for (const Words& flags : cases) {
    Words words = flags;
    words.push_back("train");
    EXPECT_TRUE(OptionsOfPrinted(flags, "train") == OptionsOf(words)) << testing::PrintToString(flags);
  }
}

TEST(LaunchOptionsTest, EveryMistakeHasItsLine) {
  const std::vector<std::pair<Words, std::string>> cases = {
      {{},
       "expected a program to start, got none: weft_run [flags] PROGRAM [ARGUMENTS]; --help lists the flags"},
      {{"--nnodes=1", "--"},
       "expected a program to start, got none: weft_run [flags] PROGRAM [ARGUMENTS]; --help lists the flags"},
      {{"--max-restart=2", "t"}, "unknown flag --max-restart: did you mean --max_restarts?"},
      {{"--nnodes"}, "flag --nnodes needs a value: --nnodes=1"},
      {{"--nnodes=0", "t"},
       "flag --nnodes: cannot read \"0\": expected a number of nodes, as in 2, or MIN:MAX, as in 1:4"},
      {{"--nnodes=4:2", "t"},
       "flag --nnodes: cannot read \"4:2\": expected a number of nodes, as in 2, or MIN:MAX, as in 1:4"},
      {{"--nnodes=1:2:3", "t"},
       "flag --nnodes: cannot read \"1:2:3\": expected a number of nodes, as in 2, or MIN:MAX, as in 1:4"},
      {{"--nproc-per-node=0", "t"},
       "flag --nproc_per_node: cannot read \"0\": expected a number of workers from 1, auto or cpu"},
      {{"--nproc-per-node=gpu", "t"},
       "flag --nproc_per_node: cannot read \"gpu\": expected a number of workers from 1, auto or cpu"},
      {{"--nnodes=2", "t"},
       "--nnodes=2 needs a place where the nodes meet: --rdzv_endpoint=HOST[:PORT] on all, or "
       "--master_addr=HOST and a --node_rank on each"},
      {{"--nnodes=2", "--master-addr=a", "t"},
       "--rdzv_backend=static needs --node_rank, the number of this node"},
      {{"--nnodes=2", "--rdzv-backend=static", "--node-rank=1", "t"},
       "--rdzv_backend=static needs --master_addr, the address of node 0"},
      {{"--nnodes=2", "--master-addr=a", "--node-rank=2", "t"},
       "--node_rank=2: with --nnodes=2 expected 0 to 1"},
      {{"--node-rank=1", "t"}, "--node_rank=1: with --nnodes=1 there is node 0 alone"},
      {{"--nnodes=1:2", "--master-addr=a", "--node-rank=0", "t"},
       "--nnodes=1:2 needs --rdzv_backend=c10d: static knows a fixed number of nodes"},
      {{"--nnodes=2", "--rdzv-backend=c10d", "t"},
       "--rdzv_backend=c10d needs --rdzv_endpoint=HOST[:PORT], where the nodes meet"},
      {{"--nnodes=2", "--rdzv-backend=c10", "t"},
       "flag --rdzv_backend: there is no \"c10\": did you mean c10d? (static, c10d, weft)"},
      {{"--nnodes=2", "--rdzv-endpoint=a", "--node-rank=0", "t"},
       "--node_rank belongs to --rdzv_backend=static: nodes that come to --rdzv_endpoint are numbered there"},
      {{"--nnodes=2", "--rdzv-endpoint=a", "--rdzv-backend=static", "--master-addr=a", "--node-rank=0", "t"},
       "--rdzv_endpoint belongs to --rdzv_backend=c10d: static comes to --master_addr"},
      {{"--rdzv-endpoint=a:0", "t"},
       "flag --rdzv_endpoint: cannot read \"a:0\": expected HOST or HOST:PORT, as in node0:29400"},
      {{"--rdzv-endpoint=:80", "t"},
       "flag --rdzv_endpoint: cannot read \":80\": expected HOST or HOST:PORT, as in node0:29400"},
      {{"--standalone", "--nnodes=2", "t"}, "--standalone is one node: leave out --nnodes=2"},
      {{"--store=a", "--rdzv-endpoint=a", "t"},
       "--store says where the nodes meet: leave out --rdzv_endpoint"},
      {{"--store=a", "--rdzv-backend=static", "t"},
       "--store numbers the nodes as they come: leave out --rdzv_backend=static"},
      {{"--store=a:0", "t"},
       "flag --store: cannot read \"a:0\": expected HOST or HOST:PORT, as in node0:29400"},
      {{"--suspicion-time=100ms", "t"}, "--suspicion_time=100ms: expected 500ms to 24h"},
      {{"--stop-grace=25h", "t"}, "--stop_grace=25h: expected 0 to 24h"},
      {{"--standalone", "--rdzv-endpoint=a", "t"}, "--standalone meets nobody: leave out --rdzv_endpoint"},
      {{"--master-port=70000", "t"}, "--master_port=70000: expected 0 to 65535"},
      {{"--max-restarts=-1", "t"}, "--max_restarts=-1: expected 0 or more"},
      {{"--max-restarts=x", "t"}, "flag --max_restarts: cannot read \"x\": expected a whole number"},
      {{"--monitor-interval=0", "t"}, "--monitor_interval=0: expected seconds, 0.001 or more"},
      {{"--rdzv-conf=join_timout=3", "t"},
       "flag --rdzv_conf: there is no \"join_timout\": did you mean join_timeout?"},
      {{"--rdzv-conf=join_timeout=soon", "t"},
       "flag --rdzv_conf: cannot read \"join_timeout=soon\": expected seconds, 0.001 or more, as in "
       "join_timeout=60"},
      {{"--rdzv-id=a/b", "t"}, "--rdzv_id=a/b: expected at most 200 letters, and no slash"},
      {{"--tee=4", "t"},
       "flag --tee: cannot read \"4\": expected 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or pairs of a "
       "local rank and one of these, as in 0:3,1:2"},
      {{"--tee=0:1,0:2", "t"}, "flag --tee: cannot read \"0:1,0:2\": local rank 0 is named twice"},
      {{"--tee=2:1", "t"}, "--tee=2:1: there is no local rank 2 with --nproc_per_node=1"},
  };
  for (const auto& [words, message] : cases) EXPECT_EQ(MessageFor(words), message);
}

}  // namespace
}  // namespace weft

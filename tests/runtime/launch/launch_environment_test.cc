#include "runtime/launch/launch_environment.h"

#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using Variables = std::map<std::string, std::string>;

LaunchEnvironment Parse(const Variables& variables) { return ParseLaunchEnvironment(variables).value(); }

std::string ErrorOf(const Variables& variables) {
  return MessageOf([&] { ParseLaunchEnvironment(variables); });
}

TEST(LaunchEnvironmentTest, WithoutALauncherThereIsNone) {
  EXPECT_EQ(ParseLaunchEnvironment({}), std::nullopt);
  EXPECT_EQ(ParseLaunchEnvironment({{"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}}), std::nullopt);
  // A shell in an allocation of Slurm: no step has been started.
  EXPECT_EQ(ParseLaunchEnvironment({{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}),
            std::nullopt);
}

TEST(LaunchEnvironmentTest, WeftRun) {
  const LaunchEnvironment expected = {
      .launcher = "RANK",
      .rank = 5,
      .world_size = 8,
      .local_rank = 1,
      .local_world_size = 4,
      .master_addr = "node0",
      .master_port = 4711,
      .agent_store = true,
      .token = "secret",
      .tls = StoreTls{.ca_file = "ca.pem", .certificate_file = "rank.pem", .key_file = "rank.key"},
      .run_id = "r1",
      .restart_count = 2,
      .uses_mpi = false,
      .gloo_host = "10.0.0.2",
      .flight_dir = "/tmp/f"};
  EXPECT_EQ(Parse({{"RANK", "5"},
                   {"WORLD_SIZE", "8"},
                   {"LOCAL_RANK", "1"},
                   {"LOCAL_WORLD_SIZE", "4"},
                   {"MASTER_ADDR", "node0"},
                   {"MASTER_PORT", "4711"},
                   {"TORCHELASTIC_RUN_ID", "r1"},
                   {"TORCHELASTIC_RESTART_COUNT", "2"},
                   {"WEFT_AGENT_STORE", "1"},
                   {"WEFT_STORE_TOKEN", "secret"},
                   {"WEFT_GLOO_HOST", "10.0.0.2"},
                   {"WEFT_FLIGHT_DIR", "/tmp/f"},
                   {"WEFT_STORE_CA", "ca.pem"},
                   {"WEFT_STORE_CERT", "rank.pem"},
                   {"WEFT_STORE_KEY", "rank.key"},
                   // Whatever started weft_run itself does not matter.
                   {"SLURM_STEP_ID", "0"},
                   {"SLURM_PROCID", "3"},
                   {"SLURM_NTASKS", "9"},
                   {"OMPI_COMM_WORLD_RANK", "1"}}),
            expected);
}

// What a PyTorchJob's pods see: no local numbers.
TEST(LaunchEnvironmentTest, Kubernetes) {
  const LaunchEnvironment environment =
      Parse({{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "job-master-0"}, {"MASTER_PORT", "23456"}});
  EXPECT_EQ(environment.rank, 1);
  EXPECT_EQ(environment.local_rank, 0);
  EXPECT_EQ(environment.local_world_size, 1);
  EXPECT_EQ(environment.master_addr, "job-master-0");
  EXPECT_EQ(environment.master_port, 23456);
  EXPECT_FALSE(environment.agent_store);
}

TEST(LaunchEnvironmentTest, UnderTorchrunItsOwnServerHasThePort) {
  Variables variables = {{"RANK", "0"},
                         {"WORLD_SIZE", "2"},
                         {"LOCAL_RANK", "0"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "h"},
                         {"MASTER_PORT", "29500"},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  EXPECT_EQ(Parse(variables).master_port, 29501);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_EQ(Parse(variables).master_port, 29500);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  variables["MASTER_PORT"] = "65535";
  EXPECT_EQ(ErrorOf(variables),
            "environment: MASTER_PORT is 65535, and under torchrun the port after it must be free");
}

TEST(LaunchEnvironmentTest, MpiLaunchers) {
  const LaunchEnvironment open_mpi = Parse({{"OMPI_COMM_WORLD_RANK", "3"},
                                            {"OMPI_COMM_WORLD_SIZE", "4"},
                                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(open_mpi.launcher, "mpirun");
  EXPECT_TRUE(open_mpi.uses_mpi);
  EXPECT_EQ(open_mpi.rank, 3);
  EXPECT_EQ(open_mpi.local_rank, 1);
  EXPECT_EQ(open_mpi.local_world_size, 2);
  EXPECT_EQ(open_mpi.master_addr, "");
  const LaunchEnvironment mpich = Parse({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}});
  EXPECT_EQ(mpich.launcher, "mpiexec");
  EXPECT_TRUE(mpich.uses_mpi);
  EXPECT_EQ(mpich.world_size, 2);
}

TEST(LaunchEnvironmentTest, Slurm) {
  const LaunchEnvironment environment = Parse({{"SLURM_PROCID", "9"},
                                               {"SLURM_NTASKS", "11"},
                                               {"SLURM_LOCALID", "1"},
                                               {"SLURM_NODEID", "2"},
                                               {"SLURM_STEP_ID", "3"},
                                               {"SLURM_JOB_ID", "123456"},
                                               {"SLURM_STEP_NODELIST", "gpu[07-08,11]"},
                                               {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"}});
  EXPECT_EQ(environment.launcher, "srun");
  EXPECT_EQ(environment.rank, 9);
  EXPECT_EQ(environment.world_size, 11);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_world_size, 3);
  EXPECT_EQ(environment.master_addr, "gpu07");
  EXPECT_EQ(environment.master_port, 20000 + 3456 + 3 * 613);
  EXPECT_EQ(environment.run_id, "slurm.123456.3");
  EXPECT_FALSE(environment.uses_mpi);
}

// The steps of a job may run beside each other, with the same first host.
TEST(LaunchEnvironmentTest, StepsOfAJobOfSlurmHavePortsOfTheirOwn) {
  const auto port = [](const std::string& job, const std::string& step) {
    return Parse(
               {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_JOB_ID", job}, {"SLURM_STEP_ID", step}})
        .master_port;
  };
  EXPECT_EQ(port("123456", "0"), 23456);
  EXPECT_EQ(port("123456", "1"), 24069);
  EXPECT_EQ(port("123456", "interactive"), 23456);
  std::set<int> ports;
  for (int step = 0; step < 10000; ++step) ports.insert(port("123456", absl::StrCat(step)));
  EXPECT_EQ(ports.size(), 10000u);
  EXPECT_EQ(*ports.begin(), 20000);
  EXPECT_EQ(*ports.rbegin(), 29999);
  // The largest numbers that there are.
  EXPECT_EQ(port("2147483647", "4294967295"), 25482);
}

// `srun --mpi=pmi2`: MPICH's variables beside Slurm's.
TEST(LaunchEnvironmentTest, SlurmWithThePmiOfMpich) {
  Variables variables = {{"PMI_RANK", "5"},
                         {"PMI_SIZE", "6"},
                         {"SLURM_PROCID", "5"},
                         {"SLURM_NTASKS", "6"},
                         {"SLURM_LOCALID", "2"},
                         {"SLURM_NODEID", "1"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_JOB_ID", "70042"},
                         {"SLURM_STEP_NODELIST", "gpu[3-4]"},
                         {"SLURM_STEP_TASKS_PER_NODE", "3(x2)"}};
  const LaunchEnvironment expected = {.launcher = "srun",
                                      .rank = 5,
                                      .world_size = 6,
                                      .local_rank = 2,
                                      .local_world_size = 3,
                                      .master_addr = "gpu3",
                                      .master_port = 20042,
                                      .token = "",
                                      .tls = std::nullopt,
                                      .run_id = "slurm.70042.0",
                                      .uses_mpi = true,
                                      .gloo_host = "",
                                      .flight_dir = ""};
  EXPECT_EQ(Parse(variables), expected);
  // An mpiexec in an allocation starts its proxies as a step, one per node, and they the ranks.
  variables["SLURM_PROCID"] = "1";
  variables["SLURM_NTASKS"] = "2";
  variables["SLURM_LOCALID"] = "0";
  variables["SLURM_STEP_TASKS_PER_NODE"] = "1(x2)";
  EXPECT_EQ(Parse(variables).launcher, "mpiexec");
  EXPECT_EQ(Parse(variables).master_addr, "");
  EXPECT_EQ(Parse(variables).local_rank, 0);
  EXPECT_EQ(Parse(variables).local_world_size, 1);
}

TEST(LaunchEnvironmentTest, FirstHosts) {
  EXPECT_EQ(FirstHost("login1"), "login1");
  EXPECT_EQ(FirstHost("a,b[1-2]"), "a");
  EXPECT_EQ(FirstHost("gpu[03-05,9],login1"), "gpu03");
  EXPECT_EQ(FirstHost("gpu[3]-ib,x"), "gpu3-ib");
  EXPECT_EQ(MessageOf([] { FirstHost("gpu[3"); }),
            "environment: the host list 'gpu[3' has a '[' that is not closed");
}

TEST(LaunchEnvironmentTest, WhatIsWrongIsNamed) {
  EXPECT_EQ(ErrorOf({{"RANK", "0"}}),
            "environment: WORLD_SIZE is not set: a launcher sets it, as weft_run does");
  EXPECT_EQ(ErrorOf({{"WORLD_SIZE", "2"}}),
            "environment: RANK is not set: a launcher sets it, as weft_run does");
  EXPECT_EQ(ErrorOf({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
            "environment: RANK is '2', expected a whole number from 0 to 1");
  EXPECT_EQ(ErrorOf({{"RANK", "0"}, {"WORLD_SIZE", "two"}}),
            "environment: WORLD_SIZE is 'two', expected a whole number of at least 1");
  EXPECT_EQ(ErrorOf({{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
            "environment: RANK and WORLD_SIZE are set, MASTER_ADDR is not: it names the host of rank 0");
  EXPECT_EQ(ErrorOf({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "70000"}}),
            "environment: MASTER_PORT is '70000', expected a whole number from 1 to 65535");
  EXPECT_EQ(ErrorOf({{"RANK", "0"},
                     {"WORLD_SIZE", "2"},
                     {"MASTER_ADDR", "h"},
                     {"LOCAL_RANK", "2"},
                     {"LOCAL_WORLD_SIZE", "2"}}),
            "environment: LOCAL_RANK is 2, but LOCAL_WORLD_SIZE 2");
  EXPECT_EQ(
      ErrorOf({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"WEFT_STORE_CA", "ca.pem"}}),
      "environment: for TLS, WEFT_STORE_CA, WEFT_STORE_CERT and WEFT_STORE_KEY are set together; given are "
      "'ca.pem', '' and ''");
  EXPECT_EQ(ErrorOf({{"SLURM_PROCID", "0"},
                     {"SLURM_NTASKS", "2"},
                     {"SLURM_STEP_ID", "0"},
                     {"SLURM_STEP_TASKS_PER_NODE", "4(y2)"}}),
            "environment: SLURM_STEP_TASKS_PER_NODE is '4(y2)', expected such as 4(x2),3");
}

}  // namespace
}  // namespace weft

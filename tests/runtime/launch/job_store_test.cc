#include "runtime/launch/job_store.h"

#include <chrono>
#include <string>

#include "gtest/gtest.h"
#include "runtime/launch/launch_environment.h"
#include "tests/runtime/store/certificates.h"

namespace weft {
namespace {

// Of one of two ranks on this machine, to whom no launcher has told an address.
LaunchEnvironment WithoutAddress(int rank, const std::string& token) {
  LaunchEnvironment environment;
  environment.rank = rank;
  environment.world_size = 2;
  environment.local_rank = rank;
  environment.local_world_size = 2;
  environment.run_id = "weft";
  environment.token = token;
  return environment;
}

TEST(JobStoreTest, ABroadcastTellsAnyToken) {
  for (const char* const token : {"", "secret", "two words", " "}) {
    std::string told;
    const auto tell = [&](const std::string& bytes) {
      told = bytes;
      return told;
    };
    const JobStore of_rank_0(WithoutAddress(0, token), tell);
    const JobStore of_rank_1(WithoutAddress(1, token), [&](const std::string& /*bytes*/) { return told; });
    of_rank_0.store()->Set("key", "value");
    EXPECT_EQ(of_rank_1.store()->Get("key", std::chrono::seconds(30)), "value") << token;
  }
}

// As a batch script exports it: the store is elsewhere, and its certificate does not name that host.
TEST(JobStoreTest, AHostWithoutAPortIsNotInTheCertificate) {
  const Certificates authority;
  LaunchEnvironment environment = WithoutAddress(0, "secret");
  environment.master_addr = "login1";
  environment.tls = authority.Sign("job", "IP:127.0.0.1");
  const JobStore store(environment, [](const std::string& bytes) { return bytes; });
  store.store()->Set("key", "value");
  EXPECT_EQ(store.store()->Get("key", std::chrono::seconds(30)), "value");
}

}  // namespace
}  // namespace weft

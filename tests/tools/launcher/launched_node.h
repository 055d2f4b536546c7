// weft_run as the nodes of a job that a test starts.

#ifndef WEFT_TESTS_TOOLS_LAUNCHER_LAUNCHED_NODE_H_
#define WEFT_TESTS_TOOLS_LAUNCHER_LAUNCHED_NODE_H_

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/tools/launcher/running_program.h"

namespace weft {

// A script: on stderr which life and rank it is.
constexpr char kSaysWho[] =
    "echo \"life $TORCHELASTIC_RESTART_COUNT: rank $RANK of $WORLD_SIZE, local $LOCAL_RANK, node "
    "$GROUP_RANK\" >&2; ";

// A node of two ranks, one of two nodes whose numbers are given.
inline std::vector<std::string> StaticNode(int port, int rank, const std::string& script,
                                           const std::vector<std::string>& more = {}) {
  std::vector<std::string> flags = {"--nnodes=2", "--nproc-per-node=2", absl::StrCat("--node-rank=", rank),
                                    "--master-addr=127.0.0.1", absl::StrCat("--master-port=", port)};
  flags.insert(flags.end(), more.begin(), more.end());
  return WeftRun(flags, script);
}

// A node of one rank; `nodes`: how many there are, as --nnodes.
inline std::vector<std::string> DynamicNode(int port, const std::string& nodes, const std::string& script,
                                            const std::vector<std::string>& more = {}) {
  std::vector<std::string> flags = {absl::StrCat("--nnodes=", nodes),
                                    absl::StrCat("--rdzv-endpoint=localhost:", port)};
  flags.insert(flags.end(), more.begin(), more.end());
  return WeftRun(flags, script);
}

// Of a `weft_run store` without a token: it says that nobody is checked, and then where it listens.
inline std::string AddressOf(RunningProgram& store) {
  EXPECT_TRUE(store.Await("127.0.0.1:", 2)) << store.err();
  return LinesOf(store.out()).front();
}

}  // namespace weft

#endif  // WEFT_TESTS_TOOLS_LAUNCHER_LAUNCHED_NODE_H_

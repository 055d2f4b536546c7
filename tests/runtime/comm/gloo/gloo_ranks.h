#ifndef WEFT_TESTS_RUNTIME_COMM_GLOO_GLOO_RANKS_H_
#define WEFT_TESTS_RUNTIME_COMM_GLOO_GLOO_RANKS_H_

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/comm/gloo/hub.h"
#include "runtime/launch/world.h"
#include "tests/runtime/comm/process_ranks.h"

namespace weft {

// A rank that is a process and whose groups are gloo's.
class GlooWorld final : public World {
 public:
  GlooWorld(int rank, int size, std::shared_ptr<GlooHub> hub, std::chrono::milliseconds timeout);

  GlooHub& hub() { return *hub_; }

 protected:
  std::shared_ptr<Communicator> MakeGroup(const std::string& name, const std::vector<int>& ranks) override;

 private:
  const std::shared_ptr<GlooHub> hub_;
  const std::chrono::milliseconds timeout_;
};

struct GlooRanksOptions {
  // By rank: where they are, and how they reach each other.
  std::function<GlooOptions(int rank)> hub = [](int) { return GlooOptions(); };
  std::chrono::milliseconds timeout = std::chrono::minutes(1);
  std::chrono::seconds deadline = std::chrono::seconds(100);  // for all of it
};

// Runs the body on ranks that are processes, which meet in a folder of their own. A rank that throws reports
// it and aborts its groups.
std::vector<RankOutcome> RunGlooProcesses(int num_ranks, const std::function<void(GlooWorld&)>& body,
                                          const GlooRanksOptions& options = {});

// The same; throws the first error, as RunRanks.
void RunGlooRanks(int num_ranks, const std::function<void(GlooWorld&)>& body,
                  const GlooRanksOptions& options = {});

// All pairs by TCP, on the loopback device.
GlooOptions OverTcp(int rank);
// Ranks 0 and 1 on one host, 2 and 3 on the next, ...: memory within, TCP between.
GlooOptions TwoToAHost(int rank);

}  // namespace weft

#endif  // WEFT_TESTS_RUNTIME_COMM_GLOO_GLOO_RANKS_H_

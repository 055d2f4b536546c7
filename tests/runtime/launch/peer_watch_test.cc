#include "runtime/launch/peer_watch.h"

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "gtest/gtest.h"
#include "runtime/launch/job_store.h"
#include "runtime/store/tcp_store.h"
#include "runtime/store/tcp_store_server.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The store of a world of three ranks by arguments, and rank 0's part. A world that has failed is waited for 100 ms.
class PeerWatchTest : public testing::Test {
 protected:
  PeerWatchTest() {
    auto server =
        std::make_unique<TcpStoreServer>(TcpStoreServerOptions{.host = "127.0.0.1", .run_id = "weft"});
    address_ = server->address();
    store_ = Join(std::move(server));
    watch_ =
        std::make_unique<PeerWatch>(*store_, /*rank=*/0, /*world_size=*/3, [](int, const std::string&) {});
  }

  std::unique_ptr<JobStore> Join(std::unique_ptr<TcpStoreServer> server) const {
    return std::make_unique<JobStore>(std::move(server),
                                      std::make_shared<TcpStore>(address_, TcpStoreOptions{.run_id = "weft"}),
                                      "world/", /*patience=*/milliseconds(100));
  }

  // The part of rank 1 or 2, whose end is `end`. It is told nothing: it ends before the others, or fails itself.
  template <class End>
  std::future<void> Run(int rank, const End& end) const {
    return std::async(std::launch::async, [this, rank, end] {
      const std::unique_ptr<JobStore> store = Join(nullptr);
      PeerWatch watch(*store, rank, /*world_size=*/3,
                      [](int gone, const std::string& how) { ADD_FAILURE() << gone << " " << how; });
      end(watch);
    });
  }

  void AwaitDone(const std::string& count) const {
    while (store_->store()->TryGet("num_done") != count) std::this_thread::sleep_for(milliseconds(2));
  }

  void EndRank0() {
    watch_->Finish();
    watch_ = nullptr;
    store_ = nullptr;
  }

  std::string address_;
  std::unique_ptr<JobStore> store_;
  std::unique_ptr<PeerWatch> watch_;
};

// So that its place is free when the next world meets there.
TEST_F(PeerWatchTest, TheEndWaitsForTheServersHoweverLongOthersWork) {
  const std::future<void> rank_1 = Run(1, [](PeerWatch& watch) { watch.Finish(); });
  AwaitDone("1");
  EXPECT_EQ(rank_1.wait_for(seconds(2)), std::future_status::timeout);
  const std::future<void> rank_2 = Run(2, [](PeerWatch& watch) { watch.Finish(); });
  EndRank0();
  EXPECT_EQ(rank_1.wait_for(seconds(30)), std::future_status::ready);
  EXPECT_EQ(rank_2.wait_for(seconds(30)), std::future_status::ready);
}

TEST_F(PeerWatchTest, AFailureWaitsForTheServersEndNoLongerThanItsPatience) {
  const std::future<void> rank_1 = Run(1, [](PeerWatch& watch) { watch.TellFailure("failed: no disk"); });
  EXPECT_EQ(rank_1.wait_for(seconds(30)), std::future_status::ready);
  EndRank0();
}

// Rank 0 keeps its world for long after it has heard of the failure.
TEST_F(PeerWatchTest, NorDoesAnEndThatHadBegunBeforeTheFailure) {
  const std::future<void> rank_1 = Run(1, [](PeerWatch& watch) { watch.Finish(); });
  AwaitDone("1");
  const std::future<void> rank_2 = Run(2, [](PeerWatch& watch) { watch.TellFailure("failed: no disk"); });
  EXPECT_EQ(rank_1.wait_for(seconds(30)), std::future_status::ready);
  EXPECT_EQ(rank_2.wait_for(seconds(30)), std::future_status::ready);
  EndRank0();
}

}  // namespace
}  // namespace weft

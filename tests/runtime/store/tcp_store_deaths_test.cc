// What the TCP store does when a client or the server dies, ends or stops, and when many wait.

#include <signal.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "runtime/base/error.h"
#include "runtime/store/tcp_store.h"
#include "runtime/store/tcp_store_server.h"
#include "tests/message_of.h"
#include "tests/runtime/store/child.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::StartsWith;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kLong = std::chrono::seconds(60);
constexpr double kBoundSeconds = 30;  // of what need not wait for kLong

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// A client in a process of its own that leaves a last will at `server`.
std::unique_ptr<Child> ClientWithWill(const TcpStoreServer& server, const std::string& command,
                                      const std::string& value) {
  auto child = std::make_unique<Child>(
      kStoreClient, std::vector<std::string>{absl::StrCat("tcp:", server.address()), command, "will", value});
  EXPECT_EQ(child->ReadLine(kLong), "ready");
  return child;
}

TEST(TcpStoreDeathsTest, TheLastWillOfAClientThatDies) {
  const TcpStoreServer server;
  TcpStore other(server.address());
  const auto killed = ClientWithWill(server, "will", "killed");
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(other.TryGet("will"), std::nullopt);
  Clock::time_point begin = Clock::now();
  killed->Signal(SIGKILL);
  EXPECT_EQ(other.Get("will", kLong), "killed");
  EXPECT_LT(SecondsSince(begin), kBoundSeconds);

  other.Delete("will");
  const auto exited = ClientWithWill(server, "will_exit", "exited");
  begin = Clock::now();
  exited->CloseInput();
  EXPECT_EQ(other.Get("will", kLong), "exited");
  EXPECT_LT(SecondsSince(begin), kBoundSeconds);

  other.Delete("will");
  const auto orderly = ClientWithWill(server, "will", "never");
  orderly->CloseInput();
  EXPECT_EQ(orderly->Join(kLong), 0);
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(other.TryGet("will"), std::nullopt);
}

// As if its machine had vanished: its connection stays open and says nothing.
TEST(TcpStoreDeathsTest, TheLastWillOfAClientThatStops) {
  const TcpStoreServer server({.keepalive = {.interval = milliseconds(1000), .timeout = milliseconds(500)}});
  TcpStore other(server.address());
  const auto stopped = ClientWithWill(server, "will", "stopped");
  const Clock::time_point begin = Clock::now();
  stopped->Signal(SIGSTOP);
  EXPECT_EQ(other.Get("will", kLong), "stopped");
  EXPECT_LT(SecondsSince(begin), kBoundSeconds);
}

TEST(TcpStoreDeathsTest, LastWillsAreReplacedForgottenAndCounted) {
  TcpStoreServer server({.max_bytes = 1000});
  const auto client = std::make_unique<TcpStore>(server.address());
  TcpStore other(server.address());
  client->SetOnDisconnect("a", "1");
  client->SetOnDisconnect("a", "2");
  client->SetOnDisconnect("b", std::string(500, 'b'));
  EXPECT_EQ(MessageOf([&] { client->SetOnDisconnect("c", std::string(500, 'c')); }),
            "the store is full: it holds 631 of 1000 bytes, and 'a last will' takes 565 more");
  EXPECT_THAT(MessageOf([&] { other.Set("c", std::string(500, 'c')); }), HasSubstr("the store is full"));
  EXPECT_EQ(InvalidArgumentMessage([&] { client->SetOnDisconnect("", "1"); }),
            "a store's key must not be empty");
  client->Farewell();
  other.Set("c", std::string(500, 'c'));
  other.Delete("c");
  // The last will has its room, however full the store is.
  const auto child = ClientWithWill(server, "will", std::string(400, 'w'));
  EXPECT_THAT(MessageOf([&] { other.Set("c", std::string(500, 'c')); }), HasSubstr("the store is full"));
  other.Set("c", std::string(460, 'c'));
  child->Signal(SIGKILL);
  EXPECT_EQ(other.Get("will", kLong), std::string(400, 'w'));
  EXPECT_EQ(other.TryGet("a"), std::nullopt);
}

// Every way to use a store, each of which must throw Aborted when the server is gone.
std::vector<std::function<void(TcpStore&)>> AllCalls() {
  return {[](TcpStore& store) { store.Get("never", kLong); },
          [](TcpStore& store) { store.Wait({"never"}, kLong); },
          [](TcpStore& store) { store.Set("k", "v"); },
          [](TcpStore& store) { store.TryGet("k"); },
          [](TcpStore& store) { store.Add("n", 1); },
          [](TcpStore& store) { store.Check({"k"}); },
          [](TcpStore& store) { store.CompareSet("k", "", "v"); },
          [](TcpStore& store) { store.Delete("k"); },
          [](TcpStore& store) { store.SetOnDisconnect("k", "v"); }};
}

void ExpectGone(TcpStore& store, const std::function<void(TcpStore&)>& call) {
  try {
    call(store);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(error.message(),
                StartsWith(absl::StrCat("the store at ", store.address(),
                                        " is gone: its server has ended or cannot be reached (")));
  }
}

// Waits in Get and in Wait, has `end` end the server, and expects every call to fail soon.
void ExpectGoneAfter(TcpStore& store, const std::function<void()>& end) {
  std::vector<std::thread> waiting;
  Clock::time_point begin = Clock::now();
  std::atomic<double> latest = 0;
  for (int i = 0; i < 2; ++i) {
    waiting.emplace_back([&, call = AllCalls()[i]] {
      ExpectGone(store, call);
      latest = std::max(latest.load(), SecondsSince(begin));
    });
  }
  std::this_thread::sleep_for(milliseconds(100));
  begin = Clock::now();
  end();
  for (std::thread& thread : waiting) thread.join();
  EXPECT_LT(latest, kBoundSeconds);
  for (const auto& call : AllCalls()) {
    const Clock::time_point called = Clock::now();
    ExpectGone(store, call);
    EXPECT_LT(SecondsSince(called), kBoundSeconds);
  }
}

TEST(TcpStoreDeathsTest, AServerThatDiesFailsEveryCall) {
  Child child(kStoreClient, {"serve", "0"});
  TcpStore store(child.ReadLine(kLong));
  store.Set("k", "v");
  ExpectGoneAfter(store, [&] { child.Signal(SIGKILL); });
  // Its keys are lost, so one that comes back is another store.
  child.Join(kLong);
  const std::string port = store.address().substr(store.address().rfind(':') + 1);
  Child again(kStoreClient, {"serve", port});
  EXPECT_EQ(again.ReadLine(kLong), store.address());
  TcpStore fresh(store.address());
  EXPECT_EQ(fresh.TryGet("k"), std::nullopt);
  ExpectGone(store, [](TcpStore& gone) { gone.TryGet("k"); });
}

TEST(TcpStoreDeathsTest, AServerThatEndsOrStopsFailsEveryCall) {
  auto server = std::make_unique<TcpStoreServer>();
  TcpStore store(server->address());
  // The end of the server is not the death of its clients.
  store.SetOnDisconnect("never", "x");
  ExpectGoneAfter(store, [&] { server.reset(); });

  Child child(kStoreClient, {"serve", "0"});
  TcpStore patient(child.ReadLine(kLong),
                   {.keepalive = {.interval = milliseconds(1000), .timeout = milliseconds(500)}});
  ExpectGoneAfter(patient, [&] { child.Signal(SIGSTOP); });
}

// Reads "Threads:" of /proc/PID/status.
int NumThreads(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    int number = 0;
    if (absl::StartsWith(line, "Threads:") && absl::SimpleAtoi(line.substr(8), &number)) return number;
  }
  return -1;
}

TEST(TcpStoreWaitersTest, TwoHundredClientsWaitWithoutAThreadEach) {
  constexpr int kClients = 200;
  Child child(kStoreClient, {"serve", "0"});
  TcpStore store(child.ReadLine(kLong));
  std::vector<std::thread> clients;
  std::atomic<int> num_right = 0;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      TcpStore mine(store.address());
      mine.Add("waiting", 1);
      if (i % 2 == 0) {
        num_right += mine.Get("go", kLong) == "now";
      } else {
        mine.Wait({"waiting", "go"}, kLong);
        ++num_right;
      }
    });
  }
  const Clock::time_point begin = Clock::now();
  while (store.TryGet("waiting") != absl::StrCat(kClients) && SecondsSince(begin) < 50) {
    std::this_thread::sleep_for(milliseconds(20));
  }
  std::this_thread::sleep_for(milliseconds(50));
  const int num_threads = NumThreads(child.pid());
  EXPECT_GT(num_threads, 0);
  EXPECT_LT(num_threads, 60);
  EXPECT_EQ(num_right, 0);
  store.Set("go", "now");
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(num_right, kClients);
}

}  // namespace
}  // namespace weft

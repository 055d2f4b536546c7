// The conformance cases over the TCP store, and what only it does: who may join, last wills, deaths.

#include "runtime/store/tcp_store.h"

#include <signal.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "runtime/base/error.h"
#include "runtime/store/prefix_store.h"
#include "runtime/store/tcp_store_server.h"
#include "tests/message_of.h"
#include "tests/runtime/store/certificates.h"
#include "tests/runtime/store/child.h"
#include "tests/runtime/store/conformance.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kShort = milliseconds(700);  // to give up a connection in

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class TcpSite : public StoreSite {
 public:
  std::shared_ptr<Store> Join() override { return std::make_shared<TcpStore>(server_.address()); }
  std::string address() const override { return absl::StrCat("tcp:", server_.address()); }

 private:
  TcpStoreServer server_;
};

const StoreBackend kTcp = {"tcp", [] { return std::make_unique<TcpSite>(); }};
INSTANTIATE_TEST_SUITE_P(Tcp, StoreConformance, testing::Values(kTcp));
INSTANTIATE_TEST_SUITE_P(Tcp, StoreAcrossProcesses, testing::Values(kTcp));

// A client in a process of its own that leaves a last will at `server`.
std::unique_ptr<Child> ClientWithWill(const TcpStoreServer& server, const std::string& command,
                                      const std::string& value) {
  auto child = std::make_unique<Child>(
      kStoreClient, std::vector<std::string>{absl::StrCat("tcp:", server.address()), command, "will", value});
  EXPECT_EQ(child->ReadLine(kLong), "ready");
  return child;
}

TEST(TcpStoreTest, OnlyTheTokenAdmits) {
  const TcpStoreServer server({.token = "open sesame"});
  const std::string address = absl::StrCat("127.0.0.1:", server.port());
  const auto join = [&](const std::string& token) { TcpStore(address, {.token = token}); };
  EXPECT_EQ(MessageOf([&] { join("open sesame"); }), "no error");
  EXPECT_EQ(MessageOf([&] { join(""); }),
            absl::StrCat("the store at ", address,
                         " refuses this client: it asks for a token, and none was given"));
  for (const std::string wrong :
       {"o", "open sesamf", "Open sesame", "open sesame ", "open sesameopen sesame"}) {
    try {
      join(wrong);
      ADD_FAILURE() << wrong << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), absl::StatusCode::kAborted);
      EXPECT_EQ(error.message(), absl::StrCat("the store at ", address, " refuses this client: wrong token"));
    }
  }
  EXPECT_EQ(InvalidArgumentMessage([&] { join(std::string(1025, 't')); }),
            "a store's token has at most 1024 bytes, got 1025");
  const std::string bytes("\0\xff\n", 3);
  const TcpStoreServer odd({.token = bytes});
  TcpStore client(absl::StrCat("127.0.0.1:", odd.port()), {.token = bytes});
  client.Set("k", "v");
  EXPECT_EQ(client.TryGet("k"), "v");
}

TEST(TcpStoreTest, OnlyClientsOfTheRunJoin) {
  const TcpStoreServer server({.run_id = "a"});
  TcpStore client(server.address(), {.run_id = "a"});
  client.Set("k", "v");
  EXPECT_EQ(MessageOf([&] { TcpStore(server.address(), {.run_id = "b"}); }),
            absl::StrCat("the store at ", server.address(), " serves run 'a', this client is of run 'b'"));
  EXPECT_THAT(MessageOf([&] { TcpStore{server.address()}; }),
              HasSubstr("serves run 'a', this client is of run ''"));
  // The token comes first: who has none learns nothing.
  const TcpStoreServer secret({.run_id = "a", .token = "t"});
  EXPECT_THAT(MessageOf([&] { TcpStore(absl::StrCat("127.0.0.1:", secret.port()), {.run_id = "b"}); }),
              HasSubstr("none was given"));
}

TEST(TcpStoreTest, ListensToThisMachineAloneUnlessTold) {
  const TcpStoreServer server;
  EXPECT_EQ(server.address(), absl::StrCat("127.0.0.1:", server.port()));
  EXPECT_EQ(server.notice(), absl::StrCat("store: listens at ", server.address(),
                                          ", for this machine alone, since it has neither a token nor TLS"));
  const TcpStoreServer open({.host = "0.0.0.0"});
  EXPECT_THAT(open.notice(), HasSubstr("whoever reaches that port can join the job"));
  const TcpStoreServer token({.token = "t"});
  EXPECT_THAT(token.address(), StartsWith("0.0.0.0:"));
  EXPECT_THAT(token.notice(), HasSubstr("with a token but without TLS"));
  const TcpStoreServer local_token({.host = "localhost", .token = "t"});
  EXPECT_EQ(local_token.notice(), "");
  TcpStore client(absl::StrCat("localhost:", local_token.port()), {.token = "t"});
  EXPECT_EQ(client.Add("n", 1), 1);
}

TEST(TcpStoreTest, AServerThatCannotListenSaysWhy) {
  const TcpStoreServer server;
  const int port = server.port();
  EXPECT_EQ(MessageOf([&] { TcpStoreServer({.port = port}); }),
            absl::StrCat("the store cannot listen at 127.0.0.1:", port,
                         ": Address already in use; is another program ", "on port ", port, "?"));
  EXPECT_EQ(MessageOf([&] { TcpStoreServer({.host = "192.0.2.1"}); }),
            "the store cannot listen at 192.0.2.1:0: Cannot assign requested address");
  EXPECT_EQ(InvalidArgumentMessage([&] { TcpStoreServer({.port = 70000}); }),
            "a store's port is 0 to 65535, got 70000");
  EXPECT_EQ(InvalidArgumentMessage([&] { TcpStoreServer({.max_bytes = 0}); }),
            "a store's max_bytes is at least 1, got 0");
}

TEST(TcpStoreTest, AnAddressWithoutAServerIsAnErrorInTime) {
  for (const char* address : {"", "host", ":80", "host:", "host:x", "host:0", "host:65536"}) {
    EXPECT_EQ(InvalidArgumentMessage([&] { TcpStore{address}; }),
              absl::StrCat("a store's address is HOST:PORT, got '", address, "'"));
  }
  int port = 0;
  {
    const TcpStoreServer server;
    port = server.port();
  }
  const Clock::time_point begin = Clock::now();
  const std::string address = absl::StrCat("127.0.0.1:", port);
  try {
    TcpStore client(address, {.connect_timeout = kShort});
    ADD_FAILURE() << "connected to nobody";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(error.message(),
                AllOf(StartsWith(absl::StrCat("no store answers at ", address, ", asked for 0.7 s")),
                      HasSubstr("Connection refused")));
  }
  EXPECT_GE(SecondsSince(begin), 0.69);
  EXPECT_LT(SecondsSince(begin), 5);
}

TEST(TcpStoreTest, AClientMayStartBeforeTheServer) {
  int port = 0;
  {
    const TcpStoreServer server;
    port = server.port();
  }
  std::thread early([port] {
    TcpStore client(absl::StrCat("127.0.0.1:", port), {.connect_timeout = kLong});
    client.Set("early", "1");
    EXPECT_EQ(client.Get("late", kLong), "2");
  });
  std::this_thread::sleep_for(milliseconds(800));
  const TcpStoreServer server({.port = port});
  TcpStore client(server.address());
  EXPECT_EQ(client.Get("early", kLong), "1");
  client.Set("late", "2");
  early.join();
}

TEST(TcpStoreTest, MutualTls) {
  const Certificates ours;
  const Certificates theirs;
  const StoreTls server_tls = ours.Sign("server", "IP:127.0.0.1,DNS:node0");
  const StoreTls client_tls = ours.Sign("client", "DNS:node1");
  const StoreTls foreign_tls = theirs.Sign("client", "DNS:node1");
  const TcpStoreServer server({.host = "127.0.0.1", .token = "t", .tls = server_tls});
  EXPECT_EQ(server.notice(), "");
  {
    TcpStore client(server.address(), {.token = "t", .tls = client_tls});
    client.Set("k", std::string(Store::kMaxValueBytes, 'v'));
    EXPECT_EQ(client.Get("k", kLong).size(), static_cast<size_t>(Store::kMaxValueBytes));
  }
  const auto join = [&](const std::string& token, std::optional<StoreTls> tls, milliseconds timeout) {
    return MessageOf(
        [&] { TcpStore(server.address(), {.token = token, .tls = tls, .connect_timeout = timeout}); });
  };
  constexpr milliseconds kRefused = milliseconds(300);  // it tries as long as it may
  EXPECT_THAT(join("wrong", client_tls, kLong), HasSubstr("wrong token"));
  EXPECT_THAT(join("t", std::nullopt, kRefused), StartsWith("no store answers at"));
  // Its own authority has signed the server, but the server does not know the client's, and the other way
  // round.
  StoreTls unknown = foreign_tls;
  unknown.ca_file = client_tls.ca_file;
  EXPECT_THAT(join("t", unknown, kRefused), StartsWith("no store answers at"));
  StoreTls distrustful = client_tls;
  distrustful.ca_file = foreign_tls.ca_file;
  EXPECT_THAT(join("t", distrustful, kRefused), StartsWith("no store answers at"));
  StoreTls named = client_tls;
  named.server_name = "node0";
  EXPECT_EQ(join("t", named, kLong), "no error");
  named.server_name = "node7";
  EXPECT_THAT(join("t", named, kRefused), StartsWith("no store answers at"));
  StoreTls no_file = client_tls;
  no_file.key_file = "/nowhere/x.key";
  EXPECT_EQ(join("t", no_file, kLong),
            "cannot open the private key /nowhere/x.key: No such file or directory");
  no_file.key_file = "";
  EXPECT_EQ(join("t", no_file, kLong), "mutual TLS takes three files, and the private key is not given");
  no_file.key_file = "/etc/hosts";
  EXPECT_EQ(join("t", no_file, kLong), "the private key /etc/hosts is not a PEM file");
}

TEST(TcpStoreTest, TheLastWillOfAClientThatDies) {
  const TcpStoreServer server;
  TcpStore other(server.address());
  const auto killed = ClientWithWill(server, "will", "killed");
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(other.TryGet("will"), std::nullopt);
  Clock::time_point begin = Clock::now();
  killed->Signal(SIGKILL);
  EXPECT_EQ(other.Get("will", kLong), "killed");
  EXPECT_LT(SecondsSince(begin), 1);

  other.Delete("will");
  const auto exited = ClientWithWill(server, "will_exit", "exited");
  begin = Clock::now();
  exited->CloseInput();
  EXPECT_EQ(other.Get("will", kLong), "exited");
  EXPECT_LT(SecondsSince(begin), 1);

  other.Delete("will");
  const auto orderly = ClientWithWill(server, "will", "never");
  orderly->CloseInput();
  EXPECT_EQ(orderly->Join(kLong), 0);
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(other.TryGet("will"), std::nullopt);
}

// As if its machine had vanished: its connection stays open and says nothing.
TEST(TcpStoreTest, TheLastWillOfAClientThatStops) {
  const TcpStoreServer server({.keepalive = {.interval = milliseconds(1000), .timeout = milliseconds(500)}});
  TcpStore other(server.address());
  const auto stopped = ClientWithWill(server, "will", "stopped");
  const Clock::time_point begin = Clock::now();
  stopped->Signal(SIGSTOP);
  EXPECT_EQ(other.Get("will", kLong), "stopped");
  EXPECT_LT(SecondsSince(begin), 4);
}

TEST(TcpStoreTest, LastWillsAreReplacedForgottenAndCounted) {
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

// Every way to use a store, each of which must throw Aborted within a second when the server is gone.
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

// Waits in Get and in Wait, has `end` end the server, and expects every call to fail within `seconds`.
void ExpectGoneAfter(TcpStore& store, const std::function<void()>& end, double seconds) {
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
  EXPECT_LT(latest, seconds);
  for (const auto& call : AllCalls()) {
    const Clock::time_point called = Clock::now();
    ExpectGone(store, call);
    EXPECT_LT(SecondsSince(called), 1);
  }
}

TEST(TcpStoreTest, AServerThatDiesFailsEveryCall) {
  Child child(kStoreClient, {"serve", "0"});
  TcpStore store(child.ReadLine(kLong));
  store.Set("k", "v");
  ExpectGoneAfter(
      store, [&] { child.Signal(SIGKILL); }, 1);
  // Its keys are lost, so one that comes back is another store.
  child.Join(kLong);
  const std::string port = store.address().substr(store.address().rfind(':') + 1);
  Child again(kStoreClient, {"serve", port});
  EXPECT_EQ(again.ReadLine(kLong), store.address());
  TcpStore fresh(store.address());
  EXPECT_EQ(fresh.TryGet("k"), std::nullopt);
  ExpectGone(store, [](TcpStore& gone) { gone.TryGet("k"); });
}

TEST(TcpStoreTest, AServerThatEndsOrStopsFailsEveryCall) {
  auto server = std::make_unique<TcpStoreServer>();
  TcpStore store(server->address());
  // The end of the server is not the death of its clients.
  store.SetOnDisconnect("never", "x");
  ExpectGoneAfter(
      store, [&] { server.reset(); }, 1);

  Child child(kStoreClient, {"serve", "0"});
  TcpStore patient(child.ReadLine(kLong),
                   {.keepalive = {.interval = milliseconds(1000), .timeout = milliseconds(500)}});
  ExpectGoneAfter(
      patient, [&] { child.Signal(SIGSTOP); }, 4);
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

TEST(TcpStoreTest, TwoHundredClientsWaitWithoutAThreadEach) {
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

TEST(TcpStoreTest, GenerationsOfAJobByPrefix) {
  const TcpStoreServer server;
  const auto client = std::make_shared<TcpStore>(server.address());
  PrefixStore first(client, "run/0/");
  PrefixStore second(client, "run/1/");
  first.Set("k", "old");
  EXPECT_EQ(second.TryGet("k"), std::nullopt);
  EXPECT_EQ(client->TryGet("run/0/k"), "old");
  std::vector<std::string> many(170, std::string(Store::kMaxKeyBytes, 'k'));
  EXPECT_EQ(InvalidArgumentMessage([&] { client->Wait(many, kLong); }),
            "the 170 keys of one call have together more than 2162688 bytes");
}

}  // namespace
}  // namespace weft

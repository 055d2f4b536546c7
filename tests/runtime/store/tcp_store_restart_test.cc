// A TCP store that restarts in place: its process is killed between and inside calls and begun anew, and its clients notice
// nothing but the time.

#include <dlfcn.h>
#include <grpcpp/grpcpp.h>
#include <netdb.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "runtime/base/error.h"
#include "runtime/store/tcp_store.grpc.pb.h"
#include "runtime/store/tcp_store.h"
#include "runtime/store/tcp_store_server.h"
#include "tests/message_of.h"
#include "tests/runtime/store/child.h"
#include "tests/runtime/store/conformance.h"

// In place of the C library's: "rotating.test" has two addresses, each time in the other order, as name servers tell them.
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints, addrinfo** found) {
  static const auto real = reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  static std::atomic<int> num_asked = 0;
  if (name == nullptr || std::string(name) != "rotating.test") return real(name, service, hints, found);
  const bool turned = ++num_asked % 2 == 0;
  const int failure = real(turned ? "127.0.0.2" : "127.0.0.1", service, hints, found);
  return failure != 0 ? failure
                      : real(turned ? "127.0.0.1" : "127.0.0.2", service, hints, &(*found)->ai_next);
}

namespace weft {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

// A store in a process of its own, with a folder.
class KeptStore {
 public:
  explicit KeptStore(const std::string& command = "keep") : command_(command) {
    std::string folder = "/tmp/weft_kept.XXXXXX";
    WEFT_CHECK(mkdtemp(folder.data()) != nullptr, "no folder");
    folder_ = folder;
    Begin();
  }
  ~KeptStore() {
    child_.reset();
    std::filesystem::remove_all(folder_);
  }

  const std::string& address() const { return address_; }
  const std::string& folder() const { return folder_; }

  // Of its files: what one bound is for a disk.
  void LimitFiles(rlim_t num_bytes) {
    rlimit limit = {};
    WEFT_CHECK(prlimit(child_->pid(), RLIMIT_FSIZE, nullptr, &limit) == 0, "no limit");
    limit.rlim_cur = std::min(num_bytes, limit.rlim_max);
    WEFT_CHECK(prlimit(child_->pid(), RLIMIT_FSIZE, &limit, nullptr) == 0, "cannot set the limit");
  }

  void Kill() {
    child_->Signal(SIGKILL);
    child_->Join(kLong);
  }
  void Begin() {
    const std::string port = address_.empty() ? "0" : address_.substr(address_.rfind(':') + 1);
    child_ = std::make_unique<Child>(kStoreClient, std::vector<std::string>{command_, port, folder_});
    address_ = child_->ReadLine(kLong);
    WEFT_CHECK(!address_.empty(), "the store did not begin");
  }

 private:
  const std::string command_;
  std::string folder_;
  std::string address_;
  std::unique_ptr<Child> child_;
};

TEST(TcpStoreRestartTest, WhatHadAnAnswerIsThereAfterAKill) {
  KeptStore kept;
  TcpStore store(kept.address());
  store.Set("k", "v");
  EXPECT_EQ(store.Add("n", 3), 3);
  kept.Kill();
  kept.Begin();
  EXPECT_EQ(store.TryGet("k"), "v");
  EXPECT_EQ(store.Add("n", 3), 6);
  TcpStore other(kept.address());
  EXPECT_EQ(other.TryGet("n"), "6");
}

TEST(TcpStoreRestartTest, WaitsGoOnOverARestart) {
  KeptStore kept;
  TcpStore store(kept.address());
  auto value = std::async(std::launch::async, [&] { return store.Get("late", kLong); });
  auto both = std::async(std::launch::async, [&] { store.Wait({"late", "later"}, kLong); });
  std::this_thread::sleep_for(milliseconds(100));
  kept.Kill();
  kept.Begin();
  TcpStore other(kept.address());
  other.Set("late", "here");
  other.Set("later", "too");
  EXPECT_EQ(value.get(), "here");
  both.get();
}

TEST(TcpStoreRestartTest, LastWillsSurvive) {
  KeptStore kept;
  TcpStore other(kept.address());
  Child client(kStoreClient, {absl::StrCat("tcp:", kept.address()), "will", "will", "killed"});
  ASSERT_EQ(client.ReadLine(kLong), "ready");
  kept.Kill();
  kept.Begin();
  EXPECT_EQ(other.TryGet("will"), std::nullopt);
  // It does nothing but wait, so its connection is found broken by its next call: its farewell.
  client.CloseInput();
  EXPECT_EQ(client.Join(kLong), 0);
  EXPECT_EQ(other.TryGet("will"), std::nullopt);
}

// Threads of several clients count, append by compare_set, set and delete, each known exactly, while the store is killed at
// moments that a seed chooses.
TEST(TcpStoreRestartTest, EqualsAModelThroughKills) {
  constexpr int kThreads = 4;
  constexpr int kKills = 12;
  // What it does for longest is to sync what it has written and not answered: there most kills meet it.
  KeptStore kept("keep_synced");
  std::atomic<bool> stop = false;
  std::atomic<int64_t> num_rounds = 0;
  std::vector<std::map<std::string, std::string>> models(kThreads);
  std::vector<int64_t> counts(kThreads, 0);
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<TcpStore>> stores;
  for (int i = 0; i < kThreads / 2; ++i) stores.push_back(std::make_unique<TcpStore>(kept.address()));
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(i);
      TcpStore& store = *stores[i / 2];
      std::map<std::string, std::string>& model = models[i];
      int64_t own = 0;
      while (!stop) {
        const std::string key = absl::StrCat(i, "/", random() % 5);
        const std::string value = absl::StrCat(random() % 3);
        store.Add("all", 1);
        ++counts[i];
        EXPECT_EQ(store.Add(absl::StrCat("own/", i), 1), ++own);
        const std::string held = model.contains(key) ? model[key] : "";
        EXPECT_EQ(store.TryGet(key).value_or(""), held);
        if (random() % 2 == 0) {
          const std::string changed = absl::StrCat(value, "x");
          EXPECT_EQ(store.CompareSet(key, held, changed), changed);
          model[key] = changed;
        } else {
          EXPECT_EQ(store.Delete(key), model.erase(key) > 0);
        }
        ++num_rounds;
      }
    });
  }
  std::mt19937 random(7);
  for (int kill = 0; kill < kKills; ++kill) {
    // Each life gets something done, also on a machine that starts one slowly.
    const int64_t before = num_rounds;
    std::this_thread::sleep_for(milliseconds(random() % 120));
    while (num_rounds == before) std::this_thread::sleep_for(milliseconds(1));
    kept.Kill();
    kept.Begin();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  TcpStore store(kept.address());
  int64_t all = 0;
  for (int i = 0; i < kThreads; ++i) {
    all += counts[i];
    for (int k = 0; k < 5; ++k) {
      const std::string key = absl::StrCat(i, "/", k);
      const auto expected = models[i].find(key);
      EXPECT_EQ(store.TryGet(key).value_or("none"), expected == models[i].end() ? "none" : expected->second);
    }
  }
  EXPECT_EQ(store.Get("all", kLong), absl::StrCat(all));
  EXPECT_GT(all, kKills);
}

TEST(TcpStoreRestartTest, AfterItsGraceItIsGone) {
  KeptStore kept;
  TcpStore store(kept.address(), {.grace = milliseconds(300)});
  TcpStore stopped(kept.address(), {.give_up = [] { return true; }});
  kept.Kill();
  const auto gone = AllOf(HasSubstr("the store at "), HasSubstr("is gone: its server has ended"));
  EXPECT_THAT(MessageOf([&] { store.Set("k", "v"); }), gone);
  EXPECT_THAT(MessageOf([&] { stopped.Set("k", "v"); }), gone);
  kept.Begin();
  EXPECT_THAT(MessageOf([&] { store.Set("k", "v"); }), gone);
}

TEST(TcpStoreRestartTest, AFullDiskIsWaitedForAndReadsGoOn) {
  KeptStore kept;
  std::mutex mutex;
  std::vector<std::string> said;
  TcpStore store(kept.address(), {.say = [&](const std::string& line) {
                   const std::lock_guard<std::mutex> lock(mutex);
                   said.push_back(line);
                 }});
  store.Set("k", "old");
  TcpStore hasty(kept.address(), {.grace = milliseconds(100)});
  TcpStore stopped(kept.address(), {.give_up = [] { return true; }});
  kept.LimitFiles(std::filesystem::file_size(kept.folder() + "/journal"));
  EXPECT_EQ(store.TryGet("k"), "old");
  const auto full = AllOf(HasSubstr("cannot write the store's journal "), HasSubstr("File too large"));
  EXPECT_THAT(MessageOf([&] { hasty.Set("k", "hasty"); }), full);
  EXPECT_THAT(MessageOf([&] { stopped.Add("n", 1); }), full);
  auto willed = std::async(std::launch::async, [&] { store.SetOnDisconnect("will", "yes"); });
  const auto deadline = std::chrono::steady_clock::now() + kLong;
  while (std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(5));
    const std::lock_guard<std::mutex> lock(mutex);
    if (!said.empty()) break;
  }
  auto added = std::async(std::launch::async, [&] { return store.Add("n", 1); });
  EXPECT_EQ(store.TryGet("k"), "old");
  kept.LimitFiles(RLIM_INFINITY);
  EXPECT_EQ(added.get(), 1);
  willed.get();
  EXPECT_THAT(said,
              testing::ElementsAre(AllOf(HasSubstr("waiting: the store at 127.0.0.1:"),
                                         HasSubstr(" has no room: cannot write the store's journal "))));
}

TEST(TcpStoreRestartTest, AnotherStoreAtTheSamePlaceIsNotTakenForIt) {
  KeptStore kept;
  TcpStore store(kept.address());
  kept.Kill();
  std::filesystem::remove(kept.folder() + "/journal");
  kept.Begin();
  EXPECT_THAT(MessageOf([&] { store.Add("n", 1); }),
              HasSubstr("another one answers there, which has not its keys"));
  EXPECT_THAT(MessageOf([&] { store.Add("n", 1); }), HasSubstr("is gone"));
}

// A store that has nothing, in this process, and takes `greets_after` to greet a client whose session it has.
class SlowStore {
 public:
  SlowStore(int port, milliseconds greets_after) : service_(greets_after) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    WEFT_CHECK(server_ != nullptr && port_ != 0, "the server did not begin");
  }
  ~SlowStore() {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  int port() const { return port_; }
  int num_sessions() const { return service_.num_sessions; }

 private:
  using Context = grpc::CallbackServerContext;

  class Greeter final : public grpc::ServerBidiReactor<tcp_store::SessionRequest, tcp_store::SessionReply> {
   public:
    explicit Greeter(milliseconds after) {
      reply_.set_store("the store");
      reply_.set_restarts_in_place(true);
      // The last that it does is to write.
      std::thread([this, after] {
        std::this_thread::sleep_for(after);
        StartWrite(&reply_);
      }).detach();
    }
    void OnWriteDone(bool ok) override { ok ? StartRead(&request_) : Finish(grpc::Status::OK); }
    void OnReadDone(bool /*ok*/) override { Finish(grpc::Status::OK); }
    void OnDone() override { delete this; }

   private:
    tcp_store::SessionRequest request_;
    tcp_store::SessionReply reply_;
  };

  class Service final : public tcp_store::StoreService::CallbackService {
   public:
    explicit Service(milliseconds greets_after) : greets_after_(greets_after) {}
    grpc::ServerBidiReactor<tcp_store::SessionRequest, tcp_store::SessionReply>* Session(Context*) override {
      ++num_sessions;
      return new Greeter(greets_after_);
    }
    grpc::ServerUnaryReactor* TryGet(Context* context, const tcp_store::Key*, tcp_store::Value*) override {
      grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
      reactor->Finish(grpc::Status::OK);
      return reactor;
    }
    // Before the call's time is up.
    grpc::ServerUnaryReactor* Get(Context* context, const tcp_store::Key*, tcp_store::Value*) override {
      grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
      reactor->Finish({grpc::StatusCode::DEADLINE_EXCEEDED, "it is late"});
      return reactor;
    }
    std::atomic<int> num_sessions = 0;

   private:
    const milliseconds greets_after_;
  };

  Service service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

// One that has opened a session and is slow to say so, since its disk is: it would take the end of the session for that of
// the client.
TEST(TcpStoreRestartTest, AStoreThatIsSlowToGreetIsWaitedFor) {
  auto first = std::make_unique<SlowStore>(0, milliseconds(0));
  const int port = first->port();
  TcpStore store(absl::StrCat("127.0.0.1:", port));
  first.reset();
  const SlowStore second(port, milliseconds(1500));
  EXPECT_EQ(store.TryGet("k"), std::nullopt);
  EXPECT_EQ(second.num_sessions(), 1);
}

// Name servers tell the addresses of a host in another order each time, which is no move.
TEST(TcpStoreRestartTest, AStoreWhoseAddressesRotateIsWaitedFor) {
  auto first = std::make_unique<SlowStore>(0, milliseconds(0));
  const int port = first->port();
  TcpStore store(absl::StrCat("rotating.test:", port));
  first.reset();
  const SlowStore second(port, milliseconds(2500));
  EXPECT_EQ(store.TryGet("k"), std::nullopt);
  EXPECT_EQ(second.num_sessions(), 1);
}

// gRPC's time is what it last looked at: either end may call a deadline over some milliseconds before it is.
TEST(TcpStoreRestartTest, AWaitThatTheStoreEndsEarlyGoesOn) {
  const SlowStore server(0, milliseconds(0));
  TcpStore store(absl::StrCat("127.0.0.1:", server.port()));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(MessageOf([&] { store.Get("k", milliseconds(60)); }), HasSubstr("waited 0.06 s for 'k'"));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(60));
}

class RestartingSite : public StoreSite {
 public:
  std::shared_ptr<Store> Join() override { return std::make_shared<TcpStore>(kept_.address()); }
  std::string address() const override { return absl::StrCat("tcp:", kept_.address()); }

 private:
  KeptStore kept_;
};

const StoreBackend kRestarting = {"restarting", [] { return std::make_unique<RestartingSite>(); }};
INSTANTIATE_TEST_SUITE_P(Restarting, StoreConformance, testing::Values(kRestarting));
INSTANTIATE_TEST_SUITE_P(Restarting, StoreAcrossProcesses, testing::Values(kRestarting));

}  // namespace
}  // namespace weft

// What a store keeps in its journal, against a model, through restarts, kills and full disks.

#include "runtime/store/kept_keys.h"

#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "runtime/base/error.h"
#include "runtime/store/store_journal.h"
#include "runtime/store/tcp_store.pb.h"
#include "tests/message_of.h"
#include "tests/runtime/store/journal_folder.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

KeptKeysOptions Kept(const JournalFolder& folder, int64_t compact_bytes = 1 << 20) {
  return {.journal = StoreJournalOptions{.folder = folder.path()}, .compact_bytes = compact_bytes};
}

std::map<std::string, std::string> Contents(KeptKeys& keys) {
  std::map<std::string, std::string> contents;
  keys.space().ForEach([&](const std::string& key, const KeySpace::Value& value) { contents[key] = *value; });
  return contents;
}

// A seeded stream of calls, some sent again, against a map; the store ends and begins anew between them, now and then at a
// journal that is cut within its last record: the call that had no answer then comes again.
TEST(KeptKeysTest, EqualsAModelThroughRestarts) {
  for (const int seed : {1, 2, 3, 4}) {
    const JournalFolder folder;
    std::mt19937 random(seed);
    std::map<std::string, std::string> model;
    const KeptKeysOptions options = Kept(folder, /*compact_bytes=*/seed % 2 == 0 ? 400 : 1 << 20);
    auto keys = std::make_unique<KeptKeys>(options);
    const std::string id = keys->id();
    for (uint64_t number = 1; number <= 1500; ++number) {
      const StoreCall call = {
          .client = absl::StrCat("client ", random() % 3), .number = number, .answered = number};
      const std::string key = absl::StrCat("k", random() % 8);
      const std::string value = absl::StrCat(random() % 4);
      const auto held = model.find(key);
      const std::string before = held == model.end() ? "" : held->second;
      const size_t what = random() % 4;
      const bool torn = random() % 20 == 0;
      const size_t num_before = folder.Bytes().size();
      for (int time = 0; time < (torn || random() % 3 == 0 ? 2 : 1); ++time) {
        if (what == 0) keys->Set(call, key, value);
        if (what == 1) {
          EXPECT_EQ(keys->Add(call, key, 2), std::stoi(before.empty() ? "0" : before) + 2);
        }
        if (what == 2) {
          const bool fits = before == value || held == model.end();
          EXPECT_EQ(keys->CompareSet(call, key, before.empty() ? "" : value, "7"), fits ? "7" : before);
        }
        if (what == 3) {
          EXPECT_EQ(keys->Delete(call, key), held != model.end());
        }
        if (!torn || time == 1) continue;
        const std::string bytes = folder.Bytes();
        keys.reset();
        // Nothing was written by a call that changed nothing; a journal that was written anew is not torn.
        if (bytes.size() > num_before) {
          folder.SetBytes(bytes.substr(0, num_before + random() % (bytes.size() - num_before)));
        }
        keys = std::make_unique<KeptKeys>(options);
      }
      if (what == 0) model[key] = value;
      if (what == 1) model[key] = absl::StrCat(std::stoi(before.empty() ? "0" : before) + 2);
      if (what == 2 && (before == value || held == model.end())) model[key] = "7";
      if (what == 3) model.erase(key);
      if (number % 50 != 0) continue;
      keys.reset();
      keys = std::make_unique<KeptKeys>(options);
      ASSERT_EQ(Contents(*keys), model) << "seed " << seed << ", call " << number;
      EXPECT_EQ(keys->id(), id);
    }
  }
}

TEST(KeptKeysTest, TheJournalStaysAMultipleOfWhatIsAlive) {
  const JournalFolder folder;
  KeptKeys keys(Kept(folder, /*compact_bytes=*/10'000));
  for (uint64_t i = 1; i <= 5000; ++i) {
    keys.Set({.client = "c", .number = i, .answered = i}, absl::StrCat("k", i % 4), std::string(100, 'v'));
  }
  EXPECT_LT(folder.Bytes().size(), 11'000u);
  EXPECT_EQ(Contents(keys).size(), 4u);
}

TEST(KeptKeysTest, ACallIsDoneOnceAndAnOldOneIsRefused) {
  const JournalFolder folder;
  {
    KeptKeys keys(Kept(folder));
    EXPECT_EQ(keys.Add({.client = "a", .number = 1, .answered = 1}, "n", 5), 5);
    EXPECT_EQ(keys.Add({.client = "a", .number = 1, .answered = 1}, "n", 5), 5);
    EXPECT_EQ(keys.Add({.client = "b", .number = 1, .answered = 1}, "n", 5), 10);
    EXPECT_EQ(keys.Add({.client = "a", .number = 2, .answered = 1}, "n", 5), 15);
  }
  KeptKeys keys(Kept(folder));
  EXPECT_EQ(keys.Add({.client = "a", .number = 1, .answered = 1}, "n", 5), 5);
  EXPECT_EQ(keys.Add({.client = "a", .number = 2, .answered = 1}, "n", 5), 15);
  EXPECT_EQ(keys.Add({.client = "a", .number = 3, .answered = 3}, "n", 5), 20);
  EXPECT_EQ(MessageOf([&] { keys.Add({.client = "a", .number = 2, .answered = 2}, "n", 5); }),
            "has answered this call already");
  EXPECT_EQ(*keys.space().TryGet("n"), "20");
}

TEST(KeptKeysTest, LastWillsWaitForClientsOfTheProcessBefore) {
  const JournalFolder folder;
  {
    KeptKeys keys(Kept(folder));
    for (const char* const client : {"returns", "stays away", "ends well"}) {
      keys.Attach(client);
      keys.LeaveWill(client, absl::StrCat("dead/", client), "yes");
    }
    keys.Farewell("ends well");
    // A client whose stream breaks while this process lives is dead at once.
    const uint64_t stream = keys.Attach("dies");
    keys.LeaveWill("dies", "dead/dies", "yes");
    keys.Detach("dies", stream);
    EXPECT_NE(keys.space().TryGet("dead/dies"), nullptr);
  }
  KeptKeys keys(Kept(folder));
  EXPECT_NE(keys.space().TryGet("dead/dies"), nullptr);
  const uint64_t old = keys.Attach("returns");
  const uint64_t stream = keys.Attach("returns");
  keys.Detach("returns", old);  // the old one's end comes late
  const auto now = KeptKeys::Clock::now();
  keys.Expire(now + milliseconds(50'000));
  EXPECT_EQ(keys.space().TryGet("dead/stays away"), nullptr);
  keys.Expire(now + milliseconds(70'000));
  EXPECT_NE(keys.space().TryGet("dead/stays away"), nullptr);
  EXPECT_EQ(keys.space().TryGet("dead/returns"), nullptr);
  EXPECT_EQ(keys.space().TryGet("dead/ends well"), nullptr);
  EXPECT_EQ(MessageOf([&] { keys.Attach("stays away"); }),
            "counts this client as dead: it was away for too long");
  keys.Detach("returns", stream);
  EXPECT_NE(keys.space().TryGet("dead/returns"), nullptr);
}

TEST(KeptKeysTest, TheGraceMayBeForEver) {
  const JournalFolder folder;
  KeptKeysOptions options = Kept(folder);
  options.grace = milliseconds::max();
  {
    KeptKeys keys(options);
    keys.Attach("away");
    keys.LeaveWill("away", "dead/away", "yes");
  }
  KeptKeys keys(options);
  keys.Expire(KeptKeys::Clock::now() + std::chrono::hours(24));
  EXPECT_EQ(keys.space().TryGet("dead/away"), nullptr);
  EXPECT_GT(keys.Attach("away"), 0u);
}

// A kill between two records of a death, beside a journal that is written anew in the midst of it: the store that begins anew
// sets the wills that are not keys yet. `num_fillers` moves the place at which the journal is written anew.
TEST(KeptKeysTest, AKillInTheMidstOfADeathLosesNoWill) {
  const std::map<std::string, std::string> wills = {
      {"dead/1", "one"}, {"dead/2", "two"}, {"dead/3", "three"}};
  int num_anew = 0;
  for (int num_fillers = 30; num_fillers < 60; ++num_fillers) {
    const JournalFolder folder;
    const KeptKeysOptions options = Kept(folder, /*compact_bytes=*/1000);
    std::string before;
    std::string after;
    {
      KeptKeys keys(options);
      const uint64_t stream = keys.Attach("dies");
      for (const auto& [key, value] : wills) keys.LeaveWill("dies", key, value);
      for (int i = 0; i < num_fillers; ++i) keys.Set({}, "k", "v");
      before = folder.Bytes();
      keys.Detach("dies", stream);
      after = folder.Bytes();
    }
    const bool is_anew = !after.starts_with(before);
    num_anew += is_anew ? 1 : 0;
    // The records that were appended, one by one, to what stood before or was written anew.
    const std::vector<std::string> records = RecordsIn(folder);
    size_t end = 8;
    bool client_is_known = false;
    for (const std::string& record : records) {
      end += static_cast<size_t>(StoreJournal::BytesOf(record));
      tcp_store::JournalRecord parsed;
      ASSERT_TRUE(parsed.ParseFromString(record));
      // A journal that is written anew ends with the clients: it is never there by halves.
      client_is_known = client_is_known || parsed.has_client();
      if (is_anew ? !client_is_known : end < before.size()) continue;
      const JournalFolder killed;
      killed.SetBytes(after.substr(0, end));
      KeptKeys again(Kept(killed));
      again.Expire(KeptKeys::Clock::now() + std::chrono::minutes(2));
      std::map<std::string, std::string> contents = Contents(again);
      contents.erase("k");
      EXPECT_EQ(contents, wills) << num_fillers << " fillers, cut at byte " << end << " of " << after.size();
    }
  }
  EXPECT_GT(num_anew, 2);
}

// Files of this process cannot grow while it lives, as on a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t num_bytes) {
    WEFT_CHECK(getrlimit(RLIMIT_FSIZE, &before_) == 0, "no limit");
    handler_ = signal(SIGXFSZ, SIG_IGN);
    rlimit full = before_;
    full.rlim_cur = std::min(num_bytes, before_.rlim_max);
    WEFT_CHECK(setrlimit(RLIMIT_FSIZE, &full) == 0, "cannot set the limit");
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_ = {};
  sighandler_t handler_ = SIG_DFL;
};

// Whether it is said again when there is room, or its client has gone meanwhile.
TEST(KeptKeysTest, AFarewellOnAFullDiskIsKeptOnceThereIsRoom) {
  for (const bool says_again : {true, false}) {
    const JournalFolder folder;
    {
      KeptKeys keys(Kept(folder));
      const uint64_t stream = keys.Attach("ends well");
      keys.LeaveWill("ends well", "dead", "yes");
      std::string message;
      {
        const FullDisk full(folder.Bytes().size());
        message = MessageOf([&] { keys.Farewell("ends well"); });
        if (!says_again) keys.Detach("ends well", stream);
      }
      EXPECT_THAT(message, HasSubstr("cannot write the store's journal "));
      if (says_again) keys.Farewell("ends well");
      keys.Expire(KeptKeys::Clock::now());
      EXPECT_EQ(keys.space().num_bytes(), 0);
    }
    KeptKeys keys(Kept(folder));
    keys.Expire(KeptKeys::Clock::now() + std::chrono::hours(1));
    EXPECT_EQ(keys.space().TryGet("dead"), nullptr) << "says again: " << says_again;
  }
}

// A last will counts as one until it is a key, and never as both.
TEST(KeptKeysTest, AStoreThatIsFullBeginsAgain) {
  const JournalFolder folder;
  KeptKeysOptions options = Kept(folder);
  options.max_bytes = KeySpace::BytesOf("k", "v") + KeySpace::BytesOf("dead", "yes");
  const std::map<std::string, std::string> contents = {{"k", "v"}, {"dead", "yes"}};
  {
    KeptKeys keys(options);
    keys.Set({}, "k", "v");
    const uint64_t stream = keys.Attach("dies");
    keys.LeaveWill("dies", "dead", "yes");
    keys.Detach("dies", stream);
    EXPECT_EQ(Contents(keys), contents);
  }
  KeptKeys keys(options);
  EXPECT_EQ(Contents(keys), contents);
  EXPECT_EQ(keys.space().num_bytes(), options.max_bytes);
  EXPECT_THAT(MessageOf([&] { keys.Set({}, "x", ""); }), HasSubstr("the store is full: "));
}

TEST(KeptKeysTest, AJournalOfMoreThanTheCapIsTakenWhole) {
  const JournalFolder folder;
  KeptKeysOptions options = Kept(folder);
  {
    KeptKeys keys(options);
    keys.Set({}, "k", "v");
    keys.Attach("away");
    keys.LeaveWill("away", "dead", "yes");
  }
  options.max_bytes = 1;
  KeptKeys keys(options);
  EXPECT_THAT(MessageOf([&] { keys.Set({}, "x", ""); }), HasSubstr("the store is full: "));
  keys.Expire(KeptKeys::Clock::now() + std::chrono::minutes(2));
  EXPECT_EQ(Contents(keys), (std::map<std::string, std::string>{{"k", "v"}, {"dead", "yes"}}));
  EXPECT_TRUE(keys.Delete({}, "k"));
}

}  // namespace
}  // namespace weft

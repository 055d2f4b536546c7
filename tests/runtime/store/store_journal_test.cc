// The journal of a store that restarts in place, as bytes: cut at every byte, damaged, written anew; and what a store keeps
// in it, against a model.

#include "runtime/store/store_journal.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "runtime/base/error.h"
#include "runtime/store/kept_keys.h"
#include "runtime/store/tcp_store.pb.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;

class JournalFolder {
 public:
  JournalFolder() {
    std::string folder = "/tmp/weft_journal.XXXXXX";
    WEFT_CHECK(mkdtemp(folder.data()) != nullptr, "no folder");
    path_ = folder;
  }
  ~JournalFolder() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }
  std::string Bytes() const {
    std::ifstream in(path_ + "/journal", std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void SetBytes(const std::string& bytes) const {
    std::ofstream(path_ + "/journal", std::ios::binary | std::ios::trunc) << bytes;
  }

 private:
  std::string path_;
};

std::vector<std::string> RecordsIn(const JournalFolder& folder) {
  std::vector<std::string> records;
  const StoreJournal journal({.folder = folder.path()},
                             [&](absl::string_view record) { records.emplace_back(record); });
  return records;
}

void Append(const JournalFolder& folder, const std::vector<std::string>& records, bool sync_each = false) {
  StoreJournal journal({.folder = folder.path(), .sync_each = sync_each}, [](absl::string_view) {});
  for (const std::string& record : records) journal.Append(record);
}

TEST(StoreJournalTest, KeepsRecordsInOrderOverRestarts) {
  const JournalFolder folder;
  EXPECT_TRUE(RecordsIn(folder).empty());
  Append(folder, {"one", std::string("\0\n\xff", 3)});
  Append(folder, {std::string(100'000, 'x')}, /*sync_each=*/true);
  EXPECT_THAT(RecordsIn(folder), ElementsAre("one", std::string("\0\n\xff", 3), std::string(100'000, 'x')));
}

// Wherever a process was killed in its last write, what was whole before is there, and the next record follows it.
TEST(StoreJournalTest, CutAtEveryByteItKeepsWhatIsWhole) {
  const JournalFolder folder;
  const std::vector<std::string> written = {"first", std::string(300, '\0'), "", "fourth"};
  std::vector<std::string> whole;
  std::vector<size_t> ends = {8};  // the file's first bytes say what it is
  for (const std::string& record : written) {
    if (record.empty()) continue;
    whole.push_back(record);
    ends.push_back(ends.back() + 8 + record.size());
  }
  Append(folder, whole);
  const std::string bytes = folder.Bytes();
  ASSERT_EQ(bytes.size(), ends.back());
  for (size_t length = 0; length <= bytes.size(); ++length) {
    folder.SetBytes(bytes.substr(0, length));
    std::vector<std::string> expected;
    for (size_t i = 1; i < ends.size() && ends[i] <= length; ++i) expected.push_back(whole[i - 1]);
    EXPECT_EQ(RecordsIn(folder), expected) << length;
    Append(folder, {"next"});
    expected.push_back("next");
    EXPECT_EQ(RecordsIn(folder), expected) << length;
  }
}

TEST(StoreJournalTest, ZerosAndRubbishAtTheEndAreCut) {
  const JournalFolder folder;
  Append(folder, {"a", "b"});
  const std::string bytes = folder.Bytes();
  for (const std::string& tail : {std::string(1, '\0'), std::string(64, '\0'), std::string(5000, '\xff')}) {
    folder.SetBytes(bytes + tail);
    EXPECT_THAT(RecordsIn(folder), ElementsAre("a", "b"));
    EXPECT_EQ(folder.Bytes(), bytes);
  }
  std::string damaged = bytes;
  damaged.back() ^= 1;
  folder.SetBytes(damaged);
  EXPECT_THAT(RecordsIn(folder), ElementsAre("a"));
}

TEST(StoreJournalTest, DamageBeforeWholeRecordsIsAnError) {
  const JournalFolder folder;
  Append(folder, {"one", "two", "three"});
  const std::string whole = folder.Bytes();
  std::string bytes = whole;
  bytes[8 + 8 + 3 + 8] ^= 1;  // the first letter of the second
  folder.SetBytes(bytes);
  EXPECT_THAT(MessageOf([&] { RecordsIn(folder); }),
              HasSubstr("/journal is damaged at byte 19 of 43, and whole records follow"));
  EXPECT_EQ(folder.Bytes(), bytes);
  // Wherever in its head too: a length that is wrong says nothing of where the next record is.
  for (size_t at = 8 + 8 + 3; at < 8 + 8 + 3 + 8; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes = whole;
      bytes[at] ^= static_cast<char>(1 << bit);
      folder.SetBytes(bytes);
      EXPECT_THAT(MessageOf([&] { RecordsIn(folder); }),
                  HasSubstr("/journal is damaged at byte 19 of 43, and whole records follow"))
          << at << ", bit " << bit;
      EXPECT_EQ(folder.Bytes(), bytes);
    }
  }
  folder.SetBytes("not a journal");
  EXPECT_THAT(MessageOf([&] { RecordsIn(folder); }), HasSubstr("/journal is no store's journal"));
}

TEST(StoreJournalTest, WrittenAnewItHasTheNewRecordsAlone) {
  const JournalFolder folder;
  {
    StoreJournal journal({.folder = folder.path()}, [](absl::string_view) {});
    for (int i = 0; i < 100; ++i) journal.Append(absl::StrCat("old ", i));
    journal.Rewrite([](const StoreJournal::Emit& emit) { emit("new"); });
    EXPECT_EQ(journal.num_bytes(), static_cast<int64_t>(folder.Bytes().size()));
    journal.Append("and more");
    EXPECT_THAT(MessageOf([&] { RecordsIn(folder); }), HasSubstr("another process keeps a store in"));
  }
  // What a process that was killed while it wrote has left.
  std::ofstream(folder.path() + "/journal.new") << "half";
  EXPECT_THAT(RecordsIn(folder), ElementsAre("new", "and more"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/journal.new"));
}

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

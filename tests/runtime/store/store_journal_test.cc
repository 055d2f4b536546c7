// The journal of a store that restarts in place, as bytes: cut at every byte, damaged, written anew.

#include "runtime/store/store_journal.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "runtime/base/error.h"
#include "tests/message_of.h"
#include "tests/runtime/store/journal_folder.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

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

}  // namespace
}  // namespace weft

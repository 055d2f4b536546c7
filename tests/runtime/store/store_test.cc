// The conformance cases over the stores without a server, and what is true of each of these alone.

#include "runtime/store/store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "runtime/base/error.h"
#include "runtime/store/file_store.h"
#include "runtime/store/hash_store.h"
#include "runtime/store/key_space.h"
#include "runtime/store/prefix_store.h"
#include "tests/message_of.h"
#include "tests/runtime/store/conformance.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class SharedSite : public StoreSite {
 public:
  explicit SharedSite(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  std::shared_ptr<Store> Join() override { return store_; }

 private:
  const std::shared_ptr<Store> store_;
};

class FileSite : public StoreSite {
 public:
  FileSite() {
    std::string folder = "/tmp/weft_store.XXXXXX";
    WEFT_CHECK(mkdtemp(folder.data()) != nullptr, "no folder");
    folder_ = folder;
  }
  ~FileSite() override { std::filesystem::remove_all(folder_); }

  std::shared_ptr<Store> Join() override { return std::make_shared<FileStore>(folder_); }
  std::string address() const override { return absl::StrCat("file:", folder_); }
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
};

INSTANTIATE_TEST_SUITE_P(Hash, StoreConformance,
                         testing::Values(StoreBackend{"hash", [] {
                                                        return std::make_unique<SharedSite>(
                                                            std::make_shared<HashStore>());
                                                      }}));
INSTANTIATE_TEST_SUITE_P(Prefix, StoreConformance,
                         testing::Values(StoreBackend{"prefix", [] {
                                                        auto whole = std::make_shared<HashStore>();
                                                        whole->Set("a", "another's");
                                                        return std::make_unique<SharedSite>(
                                                            std::make_shared<PrefixStore>(std::move(whole),
                                                                                          "run/0/"));
                                                      }}));
const StoreBackend kFile = {"file", [] { return std::make_unique<FileSite>(); }};
INSTANTIATE_TEST_SUITE_P(File, StoreConformance, testing::Values(kFile));
INSTANTIATE_TEST_SUITE_P(File, StoreAcrossProcesses, testing::Values(kFile));

TEST(PrefixStoreTest, IsAPartOfTheOtherStore) {
  const auto whole = std::make_shared<HashStore>();
  PrefixStore a(whole, "a/");
  PrefixStore inner(std::make_shared<PrefixStore>(whole, "a/"), "b/");
  a.Set("k", "1");
  inner.Set("k", "2");
  EXPECT_EQ(whole->TryGet("a/k"), "1");
  EXPECT_EQ(whole->TryGet("a/b/k"), "2");
  EXPECT_EQ(a.TryGet("b/k"), "2");
  EXPECT_EQ(whole->TryGet("k"), std::nullopt);
  EXPECT_EQ(a.prefix(), "a/");
  EXPECT_THAT(MessageOf([&] { inner.Get("x", milliseconds(0)); }), HasSubstr("'a/b/x'"));
  EXPECT_EQ(InvalidArgumentMessage([] { PrefixStore(nullptr, "a/"); }),
            "a PrefixStore wants a store to be a part of");
}

TEST(KeySpaceTest, CountsBytesAndRefusesMoreThanItsCap) {
  constexpr int64_t kEntry = KeySpace::kEntryBytes;
  KeySpace space(/*max_bytes=*/2 * kEntry + 20);
  space.Set("a", "12345");
  EXPECT_EQ(space.num_bytes(), kEntry + 6);
  space.Set("a", "1");
  EXPECT_EQ(space.num_bytes(), kEntry + 2);
  space.Set("b", std::string(17, 'x'));
  EXPECT_EQ(space.num_bytes(), 2 * kEntry + 20);
  const std::string full = absl::StrCat("the store is full: it holds 148 of 148 bytes, and ");
  EXPECT_EQ(MessageOf([&] { space.Set("a", "12"); }), full + "'a' takes 1 more");
  EXPECT_EQ(MessageOf([&] { space.Add("c", 1); }), full + "'c' takes 66 more");
  EXPECT_EQ(MessageOf([&] { space.CompareSet("c", "", "1"); }), full + "'c' takes 66 more");
  EXPECT_EQ(MessageOf([&] { space.Reserve(1); }), full + "'a last will' takes 1 more");
  EXPECT_EQ(*space.TryGet("a"), "1");
  EXPECT_EQ(space.TryGet("c"), nullptr);
  space.Set("b", "");  // a smaller value always has room
  space.Reserve(17);
  EXPECT_EQ(MessageOf([&] { space.Set("b", "1"); }), full + "'b' takes 1 more");
  space.Reserve(-17);
  EXPECT_TRUE(space.Delete("a"));
  EXPECT_TRUE(space.Delete("b"));
  EXPECT_EQ(space.num_bytes(), 0);
}

TEST(KeySpaceTest, WaitersAreCalledOnce) {
  KeySpace space;
  std::vector<std::string> calls;
  const auto note = [&](const std::string& who) {
    return [&calls, who](const KeySpace::Value& first) { calls.push_back(who + "=" + *first); };
  };
  space.WhenThere({"a"}, note("a"));
  const KeySpace::WaiterId both = space.WhenThere({"b", "a"}, note("ba"));
  const KeySpace::WaiterId dropped = space.WhenThere({"c", "b", "a"}, note("cba"));
  space.Set("a", "1");
  EXPECT_THAT(calls, ElementsAre("a=1"));
  space.Set("a", "2");
  EXPECT_THAT(space.Cancel(dropped), testing::Optional(ElementsAre("c", "b")));
  EXPECT_EQ(space.Cancel(dropped), std::nullopt);
  space.Set("b", "3");
  EXPECT_THAT(calls, ElementsAre("a=1", "ba=3"));
  EXPECT_EQ(space.Cancel(both), std::nullopt);
  space.Set("c", "4");
  space.WhenThere({"c"}, note("c"));
  EXPECT_THAT(calls, ElementsAre("a=1", "ba=3", "c=4"));
}

TEST(KeySpaceTest, ACallbackMayUseTheSpace) {
  KeySpace space;
  space.WhenThere({"a"}, [&](const KeySpace::Value& value) { space.Set("b", *value + "!"); });
  space.Set("a", "1");
  EXPECT_EQ(*space.TryGet("b"), "1!");
}

TEST(FileStoreTest, SaysWhatIsWrongWithTheFolder) {
  FileSite site;
  EXPECT_EQ(InvalidArgumentMessage([] { FileStore(""); }), "a FileStore wants a folder, got an empty path");
  std::ofstream(site.folder() + "/file") << "x";
  EXPECT_THAT(MessageOf([&] { FileStore(site.folder() + "/file/folder"); }),
              AllOf(HasSubstr("the store in "), HasSubstr("/file/folder: cannot make it: Not a directory")));
  FileStore nested(site.folder() + "/a/b");
  nested.Set("k", "v");
  std::filesystem::remove_all(site.folder() + "/a");
  EXPECT_THAT(MessageOf([&] { nested.Set("k", "v"); }),
              HasSubstr("/a/b: cannot open its lock: No such file or directory"));
  EXPECT_THAT(MessageOf([&] { nested.Get("k", kLong); }), HasSubstr("cannot read 'k': No such file"));
}

TEST(FileStoreTest, AForeignFileIsAnError) {
  FileSite site;
  FileStore store(site.folder());
  store.Set("k", "value");
  for (const auto& entry : std::filesystem::directory_iterator(site.folder())) {
    if (entry.path().filename().string()[0] == 'k') std::ofstream(entry.path()) << "not a value";
  }
  EXPECT_THAT(MessageOf([&] { store.TryGet("k"); }), HasSubstr("is not that of 'k'"));
}

// A process that was stopped while it held the lock.
TEST(FileStoreTest, ALockThatIsNeverGivenBackIsAnError) {
  FileSite site;
  FileStore store(site.folder(), {.lock_timeout = milliseconds(100)});
  store.Set("k", "v");
  const int other = open((site.folder() + "/.lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(other, LOCK_EX), 0);
  const auto message = HasSubstr("has been locked for 0.1 s: a process that holds the lock hangs");
  EXPECT_THAT(MessageOf([&] { store.Set("k", "w"); }), message);
  EXPECT_THAT(MessageOf([&] { store.Wait({"k"}, kLong); }), message);
  EXPECT_EQ(store.TryGet("k"), "v");
  close(other);
  store.Set("k", "w");
  EXPECT_EQ(store.TryGet("k"), "w");
}

}  // namespace
}  // namespace weft

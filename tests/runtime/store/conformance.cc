#include "tests/runtime/store/conformance.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "runtime/base/error.h"
#include "tests/message_of.h"
#include "tests/runtime/store/child.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Clock = std::chrono::steady_clock;

// The message of the Error of `code` that `function` throws.
template <class Function>
std::string MessageOfCode(absl::StatusCode code, const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.message();
    return error.message();
  }
  return "no error";
}

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

TEST_P(StoreConformance, KeysAndValuesAreAnyBytes) {
  const std::vector<std::string> keys = {"a",    "a/b",  "a.b",
                                         "a_b",  "a/",   "/",
                                         ".",    "..",   "../a",
                                         "A",    " ",    std::string("a\0b", 3),
                                         "\n\r", "\xff", std::string(Store::kMaxKeyBytes - 16, 'k'),
                                         ".lock"};
  const std::vector<std::string> values = {"", "x", std::string("\0\n\xff", 3), std::string(4097, 'v'),
                                           std::string(Store::kMaxValueBytes, '\x80')};
  for (size_t i = 0; i < keys.size(); ++i) store_->Set(keys[i], absl::StrCat("value ", i));
  const std::shared_ptr<Store> other = site_->Join();
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(other->Get(keys[i], kLong), absl::StrCat("value ", i));
  for (const std::string& value : values) {
    store_->Set("a", value);
    EXPECT_TRUE(other->Get("a", kLong) == value) << value.size() << " bytes";
    EXPECT_TRUE(other->TryGet("a") == value) << value.size() << " bytes";
  }
  EXPECT_EQ(other->TryGet("b"), std::nullopt);
}

TEST_P(StoreConformance, LimitsAreNamed) {
  const std::string long_key(Store::kMaxKeyBytes + 1, 'k');
  const std::string long_value(Store::kMaxValueBytes + 1, 'v');
  const std::vector<std::function<void(const std::string& key)>> calls = {
      [&](const std::string& key) { store_->Set(key, "v"); },
      [&](const std::string& key) { store_->Get(key, milliseconds(0)); },
      [&](const std::string& key) { store_->TryGet(key); },
      [&](const std::string& key) { store_->Add(key, 1); },
      [&](const std::string& key) {
        store_->Wait({"a", key}, milliseconds(0));
      },
      [&](const std::string& key) {
        store_->Check({"a", key});
      },
      [&](const std::string& key) { store_->CompareSet(key, "", "v"); },
      [&](const std::string& key) { store_->Delete(key); },
  };
  for (const auto& call : calls) {
    EXPECT_EQ(InvalidArgumentMessage([&] { call(""); }), "a store's key must not be empty");
    EXPECT_THAT(InvalidArgumentMessage([&] { call(long_key); }),
                HasSubstr("a store's key has at most 16384 bytes, 'kkk"));
  }
  const std::string expected = "a store's value has at most 1048576 bytes, that for '";
  EXPECT_THAT(InvalidArgumentMessage([&] { store_->Set("a", long_value); }),
              AllOf(HasSubstr(expected), HasSubstr("a' has 1048577")));
  EXPECT_THAT(InvalidArgumentMessage([&] { store_->CompareSet("a", long_value, ""); }), HasSubstr(expected));
  EXPECT_THAT(InvalidArgumentMessage([&] { store_->CompareSet("a", "", long_value); }), HasSubstr(expected));
  EXPECT_EQ(store_->TryGet("a"), std::nullopt);
}

TEST_P(StoreConformance, AddCounts) {
  EXPECT_EQ(store_->Add("n", 0), 0);
  EXPECT_EQ(store_->Get("n", kLong), "0");
  EXPECT_EQ(store_->Add("n", 7), 7);
  EXPECT_EQ(store_->Add("n", -10), -3);
  EXPECT_EQ(store_->Get("n", kLong), "-3");
  store_->Set("n", "9223372036854775806");
  EXPECT_EQ(store_->Add("n", 1), INT64_MAX);
  EXPECT_THAT(InvalidArgumentMessage([&] { store_->Add("n", 1); }), HasSubstr("more than 64 bits"));
  EXPECT_EQ(store_->Get("n", kLong), "9223372036854775807");
  EXPECT_EQ(store_->Add("low", INT64_MIN), INT64_MIN);
  for (const char* text : {"", "x", " 1", "1 ", "+1", "1.0", "0x1", "9223372036854775808"}) {
    store_->Set("n", text);
    EXPECT_THAT(InvalidArgumentMessage([&] { store_->Add("n", 1); }),
                AllOf(HasSubstr("cannot add to '"), HasSubstr(absl::StrCat("it holds '", text, "'"))));
    EXPECT_EQ(store_->Get("n", kLong), text);
  }
}

TEST_P(StoreConformance, CompareSetDoesWhatItsTableSays) {
  const std::optional<std::string> nothing;
  const struct {
    std::optional<std::string> held;
    std::string expected;
    std::string desired;
    std::string returned;
    std::optional<std::string> holds;
  } cases[] = {
      {nothing, "", "b", "b", "b"}, {nothing, "a", "b", "a", nothing}, {"", "", "b", "b", "b"},
      {"a", "a", "b", "b", "b"},    {"a", "x", "b", "a", "a"},         {"a", "", "b", "a", "a"},
      {"a", "a", "", "", ""},       {nothing, "", "", "", ""},
  };
  for (const auto& c : cases) {
    store_->Delete("k");
    if (c.held.has_value()) store_->Set("k", *c.held);
    EXPECT_EQ(store_->CompareSet("k", c.expected, c.desired), c.returned);
    EXPECT_EQ(store_->TryGet("k"), c.holds);
  }
}

TEST_P(StoreConformance, DeleteAndCheck) {
  EXPECT_FALSE(store_->Delete("a"));
  EXPECT_TRUE(store_->Check({}));
  store_->Wait({}, milliseconds(0));
  store_->Set("a", "");
  store_->Set("b", "1");
  EXPECT_TRUE(store_->Check({"a", "b", "a"}));
  EXPECT_FALSE(store_->Check({"a", "c", "b"}));
  EXPECT_TRUE(store_->Delete("a"));
  EXPECT_FALSE(store_->Delete("a"));
  EXPECT_EQ(store_->TryGet("a"), std::nullopt);
  EXPECT_FALSE(store_->Check({"a", "b"}));
  EXPECT_EQ(store_->Add("b", 1), 2);
}

// Long runs of random calls against a std::map that was told the same.
TEST_P(StoreConformance, AgreesWithAMap) {
  std::mt19937 random(20260);
  const auto draw = [&](int n) { return static_cast<int>(random() % n); };
  std::map<std::string, std::string> map;
  const std::vector<std::string> keys = {"a", "b", "a/b"};
  const std::vector<std::string> texts = {"", "0", "41", "x"};
  for (int step = 0; step < 600; ++step) {
    SCOPED_TRACE(step);
    const std::string& key = keys[draw(3)];
    const bool held = map.contains(key);
    const std::string& text = texts[draw(4)];
    switch (draw(6)) {
      case 0:
        store_->Set(key, text);
        map[key] = text;
        break;
      case 1:
        ASSERT_EQ(store_->TryGet(key), held ? std::optional<std::string>(map[key]) : std::nullopt);
        break;
      case 2:
        ASSERT_EQ(store_->Delete(key), map.erase(key) > 0);
        break;
      case 3: {
        const std::string& expected = texts[draw(4)];
        if (held ? map[key] == expected : expected.empty()) map[key] = text;
        ASSERT_EQ(store_->CompareSet(key, expected, text), map.contains(key) ? map[key] : expected);
        break;
      }
      case 4: {
        if (held && (map[key].empty() || map[key] == "x")) break;
        const int64_t sum = (held ? std::stoll(map[key]) : 0) + draw(9) - 4;
        ASSERT_EQ(store_->Add(key, sum - (held ? std::stoll(map[key]) : 0)), sum);
        map[key] = std::to_string(sum);
        break;
      }
      default:
        ASSERT_EQ(store_->Check(keys), map.size() == keys.size());
    }
  }
}

TEST_P(StoreConformance, TimeoutsNameWhatIsMissing) {
  store_->Set("here", "1");
  Clock::time_point begin = Clock::now();
  EXPECT_THAT(MessageOfCode(absl::StatusCode::kDeadlineExceeded,
                            [&] {
                              store_->Wait({"gone", "here", "lost\n"}, milliseconds(120));
                            }),
              AllOf(HasSubstr("waited 0.12 s for '"), HasSubstr("gone', '"), HasSubstr("lost\\n'"),
                    HasSubstr("not in the store"), Not(HasSubstr("here"))));
  EXPECT_GE(SecondsSince(begin), 0.119);
  EXPECT_LT(SecondsSince(begin), 30);
  begin = Clock::now();
  EXPECT_THAT(
      MessageOfCode(absl::StatusCode::kDeadlineExceeded, [&] { store_->Get("gone", milliseconds(60)); }),
      AllOf(HasSubstr("waited 0.06 s for '"), HasSubstr("gone'")));
  EXPECT_GE(SecondsSince(begin), 0.059);
  for (const milliseconds timeout : {milliseconds(0), milliseconds(-5), milliseconds::min()}) {
    EXPECT_THAT(MessageOfCode(absl::StatusCode::kDeadlineExceeded, [&] { store_->Get("gone", timeout); }),
                HasSubstr("waited 0 s"));
    EXPECT_EQ(store_->Get("here", timeout), "1");
    store_->Wait({"here"}, timeout);
  }
  EXPECT_EQ(store_->Get("here", milliseconds::max()), "1");
  std::vector<std::string> many;
  for (int i = 0; i < 11; ++i) many.push_back(absl::StrCat("many", i));
  EXPECT_THAT(MessageOf([&] { store_->Wait(many, milliseconds(0)); }),
              AllOf(HasSubstr("many7'"), Not(HasSubstr("many8")), HasSubstr(" and 3 more")));
}

TEST_P(StoreConformance, WaitsEndWhenAllKeysAreThere) {
  std::atomic<int> num_done = 0;
  std::vector<std::thread> waiting;
  const std::vector<std::string> keys = {"a", "b", "c"};
  for (int i = 0; i < 4; ++i) {
    waiting.emplace_back([this, i, &keys, &num_done] {
      const std::shared_ptr<Store> mine = site_->Join();
      if (i == 0) {
        EXPECT_EQ(mine->Get("c", kLong), "3");
      } else {
        mine->Wait(keys, kLong);
        EXPECT_TRUE(mine->Check(keys));
      }
      ++num_done;
    });
  }
  const auto sleep = [] { std::this_thread::sleep_for(milliseconds(60)); };
  store_->Set("a", "1");
  sleep();
  store_->Add("b", 2);
  sleep();
  EXPECT_EQ(num_done, 0);
  // What was deleted again is not there, although a waiter may have seen it.
  store_->Delete("a");
  store_->CompareSet("c", "", "3");
  waiting[0].join();
  sleep();
  EXPECT_EQ(num_done, 1);
  const Clock::time_point begin = Clock::now();
  store_->Set("a", "4");
  for (size_t i = 1; i < waiting.size(); ++i) waiting[i].join();
  EXPECT_LT(SecondsSince(begin), 30);
  EXPECT_EQ(num_done, 4);
}

// Each sum is returned to one caller alone: Add gives out numbers.
TEST_P(StoreConformance, AddGivesEachThreadNumbersOfItsOwn) {
  constexpr int kThreads = 4;
  constexpr int kTimes = 60;
  std::vector<std::vector<int64_t>> sums(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([this, &mine = sums[i]] {
      const std::shared_ptr<Store> store = site_->Join();
      for (int time = 0; time < kTimes; ++time) mine.push_back(store->Add("n", 1));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<int64_t> all;
  for (const std::vector<int64_t>& mine : sums) {
    EXPECT_TRUE(std::is_sorted(mine.begin(), mine.end()));
    all.insert(all.end(), mine.begin(), mine.end());
  }
  std::sort(all.begin(), all.end());
  ASSERT_EQ(all.size(), static_cast<size_t>(kThreads * kTimes));
  for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], static_cast<int64_t>(i + 1));
}

// CompareSet as a lock: its holder adds to a number by Get and Set, which would lose some without it.
TEST_P(StoreConformance, CompareSetExcludes) {
  constexpr int kThreads = 3;
  constexpr int kTimes = 15;
  store_->Set("n", "0");
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([this, me = absl::StrCat("thread ", i)] {
      const std::shared_ptr<Store> store = site_->Join();
      const Clock::time_point deadline = Clock::now() + kLong;
      for (int time = 0; time < kTimes && Clock::now() < deadline;) {
        if (store->CompareSet("lock", "", me) != me) continue;
        store->Set("n", absl::StrCat(std::stoi(store->Get("n", kLong)) + 1));
        EXPECT_TRUE(store->Delete("lock"));
        ++time;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store_->Get("n", kLong), absl::StrCat(kThreads * kTimes));
}

TEST_P(StoreConformance, NobodySeesHalfAValue) {
  std::atomic<bool> done = false;
  const std::string values[] = {std::string(300001, 'a'), std::string(70000, 'b'), ""};
  store_->Set("k", values[0]);
  std::thread writer([&] {
    const std::shared_ptr<Store> store = site_->Join();
    for (int i = 0; i < 60; ++i) store->Set("k", values[i % 3]);
    done = true;
  });
  int64_t num_read = 0;
  while (!done || num_read == 0) {
    const std::string value = store_->Get("k", kLong);
    ++num_read;
    if (std::find(std::begin(values), std::end(values), value) == std::end(values)) {
      ADD_FAILURE() << "a value of " << value.size() << " bytes that nobody has set";
      break;
    }
  }
  writer.join();
}

TEST_P(StoreAcrossProcesses, AddGivesEachProcessNumbersOfItsOwn) {
  constexpr int kProcesses = 3;
  constexpr int kTimes = 50;
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < kProcesses; ++i) {
    children.push_back(std::make_unique<Child>(
        kStoreClient, std::vector<std::string>{site_->address(), "add", "n", absl::StrCat(kTimes)}));
  }
  // They wait for one another, so that their calls meet.
  for (const auto& child : children) ASSERT_EQ(child->ReadLine(kLong), "ready");
  store_->Set("go", "");
  std::vector<int64_t> sums;
  for (const auto& child : children) {
    for (int i = 0; i < kTimes; ++i) sums.push_back(std::stoll(child->ReadLine(kLong)));
    EXPECT_EQ(child->Join(kLong), 0);
  }
  std::sort(sums.begin(), sums.end());
  for (size_t i = 0; i < sums.size(); ++i) ASSERT_EQ(sums[i], static_cast<int64_t>(i + 1));
  EXPECT_EQ(store_->Get("n", kLong), absl::StrCat(kProcesses * kTimes));
}

}  // namespace
}  // namespace weft

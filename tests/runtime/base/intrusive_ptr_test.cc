#include "runtime/base/intrusive_ptr.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace weft {
namespace {

struct Counted : RefCounted<Counted> {
  explicit Counted(int* deaths) : deaths(deaths) {}
  ~Counted() { ++*deaths; }
  int* deaths;
};

TEST(IntrusivePtr, CountsOwnersAndDeletesOnce) {
  int deaths = 0;
  IntrusivePtr<Counted> a = MakeIntrusive<Counted>(&deaths);
  EXPECT_EQ(a->use_count(), 1);
  IntrusivePtr<Counted> b = a;
  EXPECT_EQ(a->use_count(), 2);
  EXPECT_TRUE(a == b);
  const IntrusivePtr<Counted> c = std::move(b);
  EXPECT_EQ(a->use_count(), 2);
  EXPECT_FALSE(b);
  a = nullptr;
  EXPECT_EQ(c->use_count(), 1);
  EXPECT_EQ(deaths, 0);
  b = c;
  EXPECT_EQ(b->use_count(), 2);
}

TEST(IntrusivePtr, SelfAssignmentKeepsTheObject) {
  int deaths = 0;
  {
    IntrusivePtr<Counted> a = MakeIntrusive<Counted>(&deaths);
    const IntrusivePtr<Counted>& alias = a;
    a = alias;
    EXPECT_EQ(a->use_count(), 1);
    EXPECT_EQ(deaths, 0);
  }
  EXPECT_EQ(deaths, 1);
}

TEST(IntrusivePtr, AssignmentDropsTheOldObject) {
  int deaths = 0;
  IntrusivePtr<Counted> a = MakeIntrusive<Counted>(&deaths);
  a = MakeIntrusive<Counted>(&deaths);
  EXPECT_EQ(deaths, 1);
  EXPECT_EQ(a->use_count(), 1);
}

TEST(IntrusivePtr, LastOwnerMayBeAnyThread) {
  int deaths = 0;
  {
    IntrusivePtr<Counted> root = MakeIntrusive<Counted>(&deaths);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([copy = root] {
        for (int j = 0; j < 10000; ++j) IntrusivePtr<Counted> another = copy;
      });
    }
    root = nullptr;
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(deaths, 1);
}

}  // namespace
}  // namespace weft

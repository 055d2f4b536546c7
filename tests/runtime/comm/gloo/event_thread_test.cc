// The thread that is asked for patience is the one that was started, and only while somebody asks.

#include "runtime/comm/gloo/event_thread.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace weft {
namespace {

std::string NameOf(pthread_t thread) {
  char name[16] = {};
  pthread_getname_np(thread, name, sizeof(name));
  return name;
}

// A thread that lives until it is destroyed.
class Idler {
 public:
  Idler()
      : thread_([this] {
          id_.set_value(gettid());
          end_.get_future().wait();
        }) {
    known_id_ = id_.get_future().get();
  }
  ~Idler() {
    end_.set_value();
    thread_.join();
  }

  std::string name() { return NameOf(thread_.native_handle()); }
  int policy() const { return sched_getscheduler(known_id_); }

 private:
  std::promise<pid_t> id_;
  std::promise<void> end_;
  pid_t known_id_ = 0;
  std::thread thread_;
};

TEST(GlooEventThreadTest, ItIsPatientWhileSomebodyAsks) {
  const Idler before;
  std::unique_ptr<Idler> made;
  GlooEventThread thread([&] { made = std::make_unique<Idler>(); });
  const Idler after;
  EXPECT_EQ(made->policy(), SCHED_OTHER);
  {
    const GlooEventThread::Patience outer(&thread);
    EXPECT_EQ(made->policy(), SCHED_BATCH);
    { const GlooEventThread::Patience inner(&thread); }
    EXPECT_EQ(made->policy(), SCHED_BATCH);
    for (const int policy : {before.policy(), after.policy(), sched_getscheduler(0)}) {
      EXPECT_EQ(policy, SCHED_OTHER);
    }
  }
  EXPECT_EQ(made->policy(), SCHED_OTHER);
}

TEST(GlooEventThreadTest, EachFindsItsOwn) {
  const std::string own_name = NameOf(pthread_self());
  std::unique_ptr<Idler> first, second;
  GlooEventThread first_thread([&] { first = std::make_unique<Idler>(); });
  GlooEventThread second_thread([&] { second = std::make_unique<Idler>(); });
  EXPECT_EQ(first->name(), "weft_gloo");
  EXPECT_EQ(NameOf(pthread_self()), own_name);
  const GlooEventThread::Patience patience(&second_thread);
  EXPECT_EQ(first->policy(), SCHED_OTHER);
  EXPECT_EQ(second->policy(), SCHED_BATCH);
}

TEST(GlooEventThreadTest, NobodysIsNothing) {
  { const GlooEventThread::Patience nobody(nullptr); }
  GlooEventThread none([] {});
  { const GlooEventThread::Patience patience(&none); }
  EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
}

}  // namespace
}  // namespace weft

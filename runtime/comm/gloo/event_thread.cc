#include "runtime/comm/gloo/event_thread.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace weft {
namespace {

// A new thread has the name of the thread that starts it: at most 15 characters.
class Named {
 public:
  explicit Named(const std::string& name) {
    pthread_getname_np(pthread_self(), old_name_, sizeof(old_name_));
    pthread_setname_np(pthread_self(), name.c_str());
  }
  ~Named() { pthread_setname_np(pthread_self(), old_name_); }
  Named(const Named&) = delete;
  Named& operator=(const Named&) = delete;

 private:
  char old_name_[16] = {};
};

// The thread of this process called `name`, other than this one, which is from now on `new_name`; 0: none is.
pid_t FindAndRename(const std::string& name, const char* new_name) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", error)) {
    const std::filesystem::path comm = entry.path() / "comm";
    std::string found;
    std::getline(std::ifstream(comm) >> std::ws, found);
    int id = 0;
    if (found != name || !absl::SimpleAtoi(entry.path().filename().string(), &id) || id == gettid()) continue;
    std::ofstream(comm) << new_name;
    return id;
  }
  return 0;
}

}  // namespace

GlooEventThread::GlooEventThread(absl::FunctionRef<void()> make) {
  const std::string name = absl::StrCat("gloo.", gettid());
  const Named while_made(name);
  make();
  const pid_t id = FindAndRename(name, "weft_gloo");
  if (id != 0 && sched_getscheduler(id) == SCHED_OTHER) id_ = id;
}

// The last word is SCHED_OTHER: it is that of the last to leave.
void GlooEventThread::Ask(int change) {
  if (id_ == 0) return;
  const int before = num_asking_.fetch_add(change);
  const sched_param none = {};
  if (change > 0 && before == 0) sched_setscheduler(id_, SCHED_BATCH, &none);
  if (change < 0 && before == 1) sched_setscheduler(id_, SCHED_OTHER, &none);
}

}  // namespace weft

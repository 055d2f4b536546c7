#include "runtime/base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/error.h"

// Declared here, so that no file of ours is compiled with -fopenmp; libgomp is oneDNN's runtime.
extern "C" void omp_set_num_threads(int num_threads);

namespace weft {
namespace {

// How long a waiting thread stays awake. A kernel follows the last one within microseconds, a wake-up from
// the kernel costs 5 to 50 of them; yielding in between lets ranks that outnumber the cores go on.
constexpr int kSpins = 256;
constexpr std::chrono::microseconds kYieldTime(100);

// Tells the core that this is a spin loop, where it has such an instruction.
inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins, then yields, until `done()` holds; returns false when the caller should block instead.
template <class Predicate>
bool StayAwakeUntil(const Predicate& done) {
  for (int i = 0; i < kSpins; ++i) {
    if (done()) return true;
    Pause();
  }
  const auto deadline = std::chrono::steady_clock::now() + kYieldTime;
  do {
    std::this_thread::yield();
    if (done()) return true;
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

// The pool's control word: whether a job is open for joining, whether the pool is ending, how many workers
// have joined, and the number of the job. In one atomic, because a worker must join exactly the job it saw: a
// late worker finds the job closed and leaves it alone, so Run never waits for one that is still asleep.
constexpr uint64_t kOpen = 1;
constexpr uint64_t kStop = 2;
constexpr uint64_t kOneWorker = 4;
constexpr uint64_t kWorkers = 0xfffffffcu;
constexpr uint64_t kOneJob = uint64_t{1} << 32;
constexpr uint64_t JobNumber(uint64_t word) { return word / kOneJob; }

}  // namespace

struct ThreadPool::State {
  using Task = absl::FunctionRef<void(int64_t)>;

  ~State();
  void RunJob(int64_t num_tasks, Task task);
  void Work();
  bool Join(uint64_t seen);
  void Leave();
  void RunTasks();
  uint64_t WaitForJob(uint64_t last_job);
  void WakeWorkers(int64_t wanted);
  void WaitForWorkers();

  std::vector<std::thread> threads;
  std::atomic<bool> busy{false};  // a Run is in progress, inline or not

  std::atomic<uint64_t> word{0};

  // The open job. Written by the caller while no worker has joined, read by those that have.
  const Task* task = nullptr;
  int64_t num_tasks = 0;
  alignas(64) std::atomic<int64_t> next_task{0};

  alignas(64) std::mutex mutex;
  std::exception_ptr error;  // under `mutex`; the first one of the job
  std::condition_variable worker_wake;
  std::condition_variable caller_wake;
  // Each sleeper announces itself before it reads `word` for the last time, and each writer of `word` reads
  // these after it: both sequentially consistent, so one of the two sees the other.
  std::atomic<int64_t> sleeping_workers{0};
  std::atomic<bool> caller_sleeps{false};
};

ThreadPool::State::~State() {
  word.store(kStop);
  {
    std::lock_guard<std::mutex> lock(mutex);
    worker_wake.notify_all();
  }
  for (std::thread& thread : threads) thread.join();
}

void ThreadPool::State::RunJob(int64_t num_tasks_in_job, Task task_of_job) {
  task = &task_of_job;
  num_tasks = num_tasks_in_job;
  next_task.store(0, std::memory_order_relaxed);
  word.store((JobNumber(word.load(std::memory_order_relaxed)) + 1) * kOneJob + kOpen);
  WakeWorkers(num_tasks - 1);
  RunTasks();
  word.fetch_and(~kOpen);
  WaitForWorkers();
  // No worker is in the job any more, and their leaving synchronised with us: no lock is needed.
  if (error != nullptr) std::rethrow_exception(std::exchange(error, nullptr));
}

// A pool thread's life.
void ThreadPool::State::Work() {
  omp_set_num_threads(1);
  uint64_t last_job = 0;
  while (true) {
    const uint64_t seen = WaitForJob(last_job);
    if (seen & kStop) return;
    last_job = JobNumber(seen);
    if (Join(seen)) {
      RunTasks();
      Leave();
    }
  }
}

// Enters the job of `seen`, unless it has been closed since.
bool ThreadPool::State::Join(uint64_t seen) {
  const uint64_t job = JobNumber(seen);
  while (JobNumber(seen) == job && (seen & kOpen)) {
    if (word.compare_exchange_weak(seen, seen + kOneWorker)) return true;
  }
  return false;
}

void ThreadPool::State::Leave() {
  const uint64_t before = word.fetch_sub(kOneWorker);
  if ((before & kWorkers) == kOneWorker && caller_sleeps.load()) {
    std::lock_guard<std::mutex> lock(mutex);
    caller_wake.notify_one();
  }
}

void ThreadPool::State::RunTasks() {
  try {
    for (int64_t i; (i = next_task.fetch_add(1, std::memory_order_relaxed)) < num_tasks;) (*task)(i);
  } catch (...) {
    next_task.store(num_tasks, std::memory_order_relaxed);  // drops the tasks that have not started
    std::lock_guard<std::mutex> lock(mutex);
    if (error == nullptr) error = std::current_exception();
  }
}

// Waits for a job other than `last_job`, or for the end; returns the word that says which.
uint64_t ThreadPool::State::WaitForJob(uint64_t last_job) {
  uint64_t seen = 0;
  const auto arrived = [&] {
    seen = word.load();
    return (seen & kStop) || ((seen & kOpen) && JobNumber(seen) != last_job);
  };
  if (StayAwakeUntil(arrived)) return seen;
  std::unique_lock<std::mutex> lock(mutex);
  sleeping_workers.fetch_add(1);
  worker_wake.wait(lock, arrived);
  sleeping_workers.fetch_sub(1);
  return seen;
}

// Wakes at most `wanted` sleeping workers. Those that are awake see the new job by themselves.
void ThreadPool::State::WakeWorkers(int64_t wanted) {
  int64_t count = std::min(wanted, sleeping_workers.load());
  if (count <= 0) return;
  // Taking the lock orders this after a worker's last look at `word`: no wake-up falls between look and wait.
  { std::lock_guard<std::mutex> lock(mutex); }
  for (; count > 0; --count) worker_wake.notify_one();
}

void ThreadPool::State::WaitForWorkers() {
  const auto all_left = [&] { return (word.load() & kWorkers) == 0; };
  if (StayAwakeUntil(all_left)) return;
  std::unique_lock<std::mutex> lock(mutex);
  caller_sleeps.store(true);
  caller_wake.wait(lock, all_left);
  caller_sleeps.store(false);
}

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads), state_(std::make_unique<State>()) {
  WEFT_REQUIRE(num_threads >= 1, "ThreadPool: expected at least 1 thread, got ", num_threads);
  omp_set_num_threads(1);
  try {
    for (int i = 1; i < num_threads; ++i) {
      state_->threads.emplace_back([state = state_.get()] { state->Work(); });
    }
  } catch (const std::system_error& error) {
    Throw(absl::StatusCode::kResourceExhausted, "ThreadPool: cannot start thread ",
          state_->threads.size() + 1, " of ", num_threads, ": ", error.what());
  }
}

ThreadPool::~ThreadPool() = default;

void ThreadPool::Run(int64_t num_tasks, absl::FunctionRef<void(int64_t)> task) {
  WEFT_REQUIRE(num_tasks >= 0, "ThreadPool::Run: expected at least 0 tasks, got ", num_tasks);
  if (state_->busy.exchange(true)) {
    Throw(absl::StatusCode::kFailedPrecondition,
          "ThreadPool::Run: the pool is already running a call; it may not be entered from inside a task nor "
          "from a second thread");
  }
  struct Idle {  // also when a task throws
    std::atomic<bool>& busy;
    ~Idle() { busy.store(false); }
  } idle{state_->busy};
  if (num_threads_ == 1 || num_tasks <= 1) {
    for (int64_t i = 0; i < num_tasks; ++i) task(i);
  } else {
    state_->RunJob(num_tasks, task);
  }
}

void ThreadPool::ParallelFor(int64_t n, int64_t grain,
                             absl::FunctionRef<void(int64_t begin, int64_t end)> body) {
  WEFT_REQUIRE(n >= 0, "ThreadPool::ParallelFor: expected at least 0 items, got ", n);
  WEFT_REQUIRE(grain >= 1, "ThreadPool::ParallelFor: expected a grain of at least 1, got ", grain);
  const int64_t num_pieces = n / grain + (n % grain != 0);
  Run(num_pieces, [&](int64_t piece) {
    const int64_t begin = piece * grain;
    body(begin, begin + std::min(grain, n - begin));
  });
}

}  // namespace weft

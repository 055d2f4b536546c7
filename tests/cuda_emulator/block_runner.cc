#include "tests/cuda_emulator/block_runner.h"

#include <ucontext.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <stdexcept>
#include <vector>

namespace cuda_emulator {
namespace {

constexpr int kWarp = 32;
constexpr size_t kStackBytes = 128 << 10;

enum class State { kReady, kAtBlockBarrier, kAtWarpBarrier, kDone };

// One thread of a block. A fiber is begun when its turn comes, and one that ends hands its stack on.
struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  int index = 0;  // in the block
  State state = State::kReady;
  bool begun = false;
};

struct Warp {
  uint64_t values[kWarp] = {};
};

// The threads of one block at a time; made once a launch.
class BlockRunner {
 public:
  BlockRunner(const cudaLaunchConfig_t& config, const std::function<void()>& thread)
      : config_(config),
        thread_(thread),
        num_threads_(static_cast<int>(config.blockDim.x * config.blockDim.y * config.blockDim.z)),
        fibers_(num_threads_),
        warps_((num_threads_ + kWarp - 1) / kWarp),
        shared_(config.dynamicSmemBytes + 64) {}

  void Run(const uint3& block, bool backwards);

  int lane() const { return current_->index % kWarp; }
  char* shared() {
    const auto address = reinterpret_cast<uintptr_t>(shared_.data());
    return reinterpret_cast<char*>((address + 63) / 64 * 64);
  }
  uint64_t Exchange(uint64_t value, int lane) {
    Warp& warp = warps_[current_->index / kWarp];
    warp.values[current_->index % kWarp] = value;
    Wait(State::kAtWarpBarrier);
    const uint64_t result = warp.values[lane];
    Wait(State::kAtWarpBarrier);
    return result;
  }
  void Wait(State state) {
    Fiber* const self = current_;
    self->state = state;
    swapcontext(&self->context, &scheduler_);
  }

 private:
  static void Begin();
  void Resume(Fiber& fiber);
  bool Release();

  const cudaLaunchConfig_t& config_;
  const std::function<void()>& thread_;
  const int num_threads_;
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<char> shared_;
  std::vector<std::unique_ptr<char[]>> stacks_;
  ucontext_t scheduler_;
  Fiber* current_ = nullptr;
  std::exception_ptr error_;
};

thread_local BlockRunner* running = nullptr;

void BlockRunner::Begin() {
  BlockRunner& self = *running;
  try {
    self.thread_();
  } catch (...) {
    if (self.error_ == nullptr) self.error_ = std::current_exception();
  }
  self.current_->state = State::kDone;
}

void BlockRunner::Resume(Fiber& fiber) {
  current_ = &fiber;
  const unsigned index = static_cast<unsigned>(fiber.index);
  threadIdx = {index % blockDim.x, index / blockDim.x % blockDim.y, index / blockDim.x / blockDim.y};
  if (!fiber.begun) {
    if (stacks_.empty()) stacks_.push_back(std::make_unique_for_overwrite<char[]>(kStackBytes));
    fiber.stack = std::move(stacks_.back());
    stacks_.pop_back();
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = &scheduler_;
    makecontext(&fiber.context, &BlockRunner::Begin, 0);
    fiber.begun = true;
  }
  swapcontext(&scheduler_, &fiber.context);
  if (fiber.state == State::kDone) stacks_.push_back(std::move(fiber.stack));
}

// Lets those go on for whom all have come. False if there is nobody left.
bool BlockRunner::Release() {
  bool released = false;
  int num_waiting = 0;
  int num_at_block = 0;
  for (const Fiber& fiber : fibers_) {
    num_waiting += fiber.state != State::kDone ? 1 : 0;
    num_at_block += fiber.state == State::kAtBlockBarrier ? 1 : 0;
  }
  if (num_waiting == 0) return false;
  for (int begin = 0; begin < num_threads_; begin += kWarp) {
    const int end = std::min(num_threads_, begin + kWarp);
    bool all_here = true;
    for (int i = begin; i < end; ++i) {
      all_here &= fibers_[i].state == State::kAtWarpBarrier || fibers_[i].state == State::kDone;
    }
    for (int i = begin; i < end && all_here; ++i) {
      if (fibers_[i].state != State::kAtWarpBarrier) continue;
      fibers_[i].state = State::kReady;
      released = true;
    }
  }
  if (!released && num_at_block == num_waiting) {
    for (Fiber& fiber : fibers_) {
      if (fiber.state == State::kAtBlockBarrier) fiber.state = State::kReady;
    }
    released = true;
  }
  if (!released) {
    throw std::logic_error("a CUDA kernel's threads wait at different barriers: the block hangs");
  }
  return true;
}

void BlockRunner::Run(const uint3& block, bool backwards) {
  BlockRunner* const outer = running;
  running = this;
  for (Warp& warp : warps_) warp = {};
  blockIdx = block;
  blockDim = config_.blockDim;
  gridDim = config_.gridDim;
  for (int i = 0; i < num_threads_; ++i) {
    Fiber& fiber = fibers_[i];
    fiber.index = i;
    fiber.state = State::kReady;
    fiber.begun = false;
  }
  do {
    for (int turn = 0; turn < num_threads_; ++turn) {
      Fiber& fiber = fibers_[backwards ? num_threads_ - 1 - turn : turn];
      if (fiber.state == State::kReady) Resume(fiber);
    }
  } while (Release());
  running = outer;
  if (error_ != nullptr) std::rethrow_exception(error_);
}

}  // namespace

void RunGrid(const cudaLaunchConfig_t& config, const std::function<void()>& thread) {
  BlockRunner runner(config, thread);
  bool backwards = false;
  for (unsigned z = 0; z < config.gridDim.z; ++z) {
    for (unsigned y = 0; y < config.gridDim.y; ++y) {
      for (unsigned x = 0; x < config.gridDim.x; ++x) {
        runner.Run({x, y, z}, backwards);
        backwards = !backwards;
      }
    }
  }
}

char* DynamicShared() { return running->shared(); }
void SyncBlock() { running->Wait(State::kAtBlockBarrier); }
void SyncWarp() { running->Wait(State::kAtWarpBarrier); }
int CurrentLane() { return running->lane(); }
uint64_t Exchange(uint64_t value, int lane) { return running->Exchange(value, lane); }

}  // namespace cuda_emulator

#include "tests/cuda_emulator/block_runner.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <vector>

// Goes on where the stack pointer `next` was put away and puts away the caller's in `*own`. Like swapcontext,
// which asks the system for the signal mask each time, a hundred times the rest.
extern "C" void weft_switch_fiber(void** own, void* next);
#ifndef __x86_64__
#error "the CUDA emulator switches fibers on x86-64 alone"
#endif
asm(R"(
  .text
  .p2align 4
  .type weft_switch_fiber, @function
weft_switch_fiber:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size weft_switch_fiber, . - weft_switch_fiber
)");

namespace cuda_emulator {
namespace {

constexpr int kWarp = 32;
constexpr size_t kStackBytes = 128 << 10;

enum class State { kReady, kAtBlockBarrier, kAtWarpBarrier, kDone };

// One thread of a block. A fiber is begun when its turn comes, and one that ends hands its stack on.
struct Fiber {
  void* stack_pointer = nullptr;
  std::unique_ptr<char[]> stack;
  int index = 0;  // in the block
  State state = State::kReady;
  bool begun = false;
  std::vector<AsyncCopy> copies;
};

struct Warp {
  uint64_t values[kWarp] = {};
  // The instruction that lanes are coming for.
  void* operands[kWarp] = {};
  void (*instruction)(void* const* lanes) = nullptr;
  int num_here = 0;
  int64_t num_run = 0;
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
  void Together(void* operands, void (*run)(void* const* lanes));
  void Wait(State state) {
    Fiber* const self = current_;
    self->state = state;
    weft_switch_fiber(&self->stack_pointer, scheduler_);
  }
  std::vector<AsyncCopy>& copies() { return current_->copies; }

 private:
  // Does not return, so ThreadSanitizer must not count it among the calls that are open.
  [[gnu::no_sanitize("thread")]] static void Begin();
  void Resume(Fiber& fiber);
  bool Release();

  const cudaLaunchConfig_t& config_;
  const std::function<void()>& thread_;
  const int num_threads_;
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<char> shared_;
  std::vector<std::unique_ptr<char[]>> stacks_;
  void* scheduler_ = nullptr;  // its stack pointer
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
  void* nobody = nullptr;
  weft_switch_fiber(&nobody, self.scheduler_);
}

// The stack of a fiber that has not run: six registers, then where to begin, at an address as after a call.
void* FirstStackPointer(char* stack, void (*begin)()) {
  constexpr int kRegisters = 6;
  const uintptr_t top = (reinterpret_cast<uintptr_t>(stack) + kStackBytes) / 16 * 16;
  void** const words = reinterpret_cast<void**>(top) - (kRegisters + 2);
  std::fill_n(words, kRegisters + 2, nullptr);
  words[kRegisters] = reinterpret_cast<void*>(begin);
  return words;
}

void BlockRunner::Resume(Fiber& fiber) {
  current_ = &fiber;
  const unsigned index = static_cast<unsigned>(fiber.index);
  threadIdx = {index % blockDim.x, index / blockDim.x % blockDim.y, index / blockDim.x / blockDim.y};
  if (!fiber.begun) {
    if (stacks_.empty()) stacks_.push_back(std::make_unique_for_overwrite<char[]>(kStackBytes));
    fiber.stack = std::move(stacks_.back());
    stacks_.pop_back();
    fiber.stack_pointer = FirstStackPointer(fiber.stack.get(), &BlockRunner::Begin);
    fiber.begun = true;
  }
  weft_switch_fiber(&scheduler_, fiber.stack_pointer);
  if (fiber.state == State::kDone) stacks_.push_back(std::move(fiber.stack));
}

void BlockRunner::Together(void* operands, void (*run)(void* const* lanes)) {
  Warp& warp = warps_[current_->index / kWarp];
  if (warp.num_here > 0 && warp.instruction != run) {
    throw std::logic_error("lanes of a warp are at different instructions");
  }
  warp.instruction = run;
  warp.operands[lane()] = operands;
  const int64_t num_run = warp.num_run;
  if (++warp.num_here == kWarp) {
    run(warp.operands);
    warp.num_here = 0;
    ++warp.num_run;
  }
  Wait(State::kAtWarpBarrier);
  if (warp.num_run == num_run) throw std::logic_error("an instruction of a warp without all of its lanes");
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
    fiber.copies.clear();
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
void Together(void* operands, void (*run)(void* const* lanes)) { running->Together(operands, run); }
std::vector<AsyncCopy>& AsyncCopies() { return running->copies(); }

}  // namespace cuda_emulator

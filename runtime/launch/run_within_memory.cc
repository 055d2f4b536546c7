#include "runtime/launch/run_within_memory.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/device/out_of_memory.h"
#include "runtime/launch/process_world.h"
#include "runtime/launch/run_world.h"

namespace weft {
namespace {

// Of a world, in its store: what rank 0 has found, so that all take the same.
constexpr char kTakenKey[] = "weft/memory_saving";

// The savings of one number of ranks.
class Ladder {
 public:
  Ladder(const MemorySavings& savings, int num_ranks, const WorldOptions& options)
      : names_(savings.names),
        key_(absl::StrCat("memory_saving/", num_ranks)),
        timeout_(options.comm_timeout) {
    WEFT_REQUIRE(!names_.empty(), "RunWithinMemory: expected at least one way to run");
  }

  int last() const { return static_cast<int>(std::ssize(names_)) - 1; }
  const std::string& name(int saving) const { return names_[saving]; }

  // Which one ranks that are processes take.
  int TakenBy(ProcessWorld& world, Store& run) const {
    const std::string taken = absl::StrCat(kTakenKey, "/", world.number());
    if (world.rank() == 0) world.store().Set(taken, run.TryGet(key_).value_or("0"));
    const std::string text = world.store().Get(taken, timeout_);
    int saving = 0;
    WEFT_REQUIRE(absl::SimpleAtoi(text, &saving) && saving >= 0, "the job's store: '", key_, "' is '", text,
                 "', expected a number");
    saving = std::min(saving, last());
    if (saving > 0 && world.rank() == 0) {
      std::cerr << absl::StrCat("weft: going on with ", name(saving),
                                ": ranks of this run had too little memory\n");
    }
    return saving;
  }

  void Note(Store& run, int saving) const { run.Set(key_, absl::StrCat(saving)); }

 private:
  const std::vector<std::string>& names_;
  const std::string key_;
  const std::chrono::milliseconds timeout_;
};

std::string TextOf(const std::exception& error) {
  const auto* const told = dynamic_cast<const Error*>(&error);
  return told != nullptr ? std::string(told->message())
                         : absl::StrCat("out of memory on the host: ", error.what());
}

[[noreturn]] void ThrowLast(const Ladder& ladder, const std::exception& error) {
  Throw(absl::StatusCode::kResourceExhausted, TextOf(error),
        ladder.last() > 0 ? absl::StrCat("; ", ladder.name(ladder.last()), " saves most already") : "");
}

void RunProcess(World& world, const Ladder& ladder, const std::function<void(World&, int)>& body) {
  auto* const process = dynamic_cast<ProcessWorld*>(&world);
  Store* const run = process != nullptr && ladder.last() > 0 ? process->run_store() : nullptr;
  const int saving = run != nullptr ? ladder.TakenBy(*process, *run) : 0;
  try {
    body(world, saving);
  } catch (const std::exception& error) {
    if (!IsOutOfMemory(error)) throw;
    if (saving == ladder.last()) ThrowLast(ladder, error);
    const std::string& next = ladder.name(saving + 1);
    if (run != nullptr) ladder.Note(*run, saving + 1);
    Throw(absl::StatusCode::kResourceExhausted, TextOf(error), "; ",
          run != nullptr ? absl::StrCat("ranks that are started again go on with ", next)
                         : absl::StrCat(next, " takes less"));
  }
}

}  // namespace

void RunWithinMemory(int num_ranks, const MemorySavings& savings,
                     const std::function<void(World& world, int saving)>& body, const WorldOptions& options) {
  const Ladder ladder(savings, num_ranks, options);
  const auto run_world = savings.allow_spares ? RunWorldWithSpares : RunWorld;
  if (RanksAreProcesses(options.backend)) {
    return run_world(
        num_ranks, [&](World& world) { RunProcess(world, ladder, body); }, options);
  }
  for (int saving = 0;; ++saving) {
    try {
      return run_world(
          num_ranks, [&](World& world) { body(world, saving); }, options);
    } catch (const std::exception& error) {
      if (!IsOutOfMemory(error)) throw;
      if (saving == ladder.last()) ThrowLast(ladder, error);
      std::cerr << absl::StrCat("weft: ", TextOf(error), "; going on with ", ladder.name(saving + 1), "\n");
    }
    if (savings.before_again != nullptr) savings.before_again();
  }
}

}  // namespace weft

// Schedules by name: what each is called, the sizes that it takes, and how its lists are made.

#ifndef WEFT_PARALLEL_PIPELINE_GENERATOR_H_
#define WEFT_PARALLEL_PIPELINE_GENERATOR_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "parallel/pipeline/schedule.h"

namespace weft {

// What a schedule is made for.
struct ScheduleSize {
  int ranks = 1;
  int chunks = 0;  // stages per rank; 0: as many as the schedule has by itself
  int microbatches = 1;

  bool operator==(const ScheduleSize&) const = default;
};

// One schedule: a name and how its lists are made.
struct ScheduleGenerator {
  std::string name = {};             // "1f1b"
  std::string summary = {};          // a line for help texts
  int chunks = 1;                    // stages per rank where the caller does not say
  bool any_chunks = false;           // whether the caller may say
  bool updates_within_step = false;  // it has OPT: no optimizer updates after it
  // What the count of microbatches has to be, for errors: "a multiple of ...". Empty: any count will do.
  std::string rule = {};
  // Whether the rule holds; asked only if there is one.
  std::function<bool(const ScheduleSize&)> accepts = {};
  // The lists and where the stages lie; the name is filled in by GenerateSchedule. The size is legal.
  std::function<PipelineSchedule(const ScheduleSize&)> generate = {};
};

// Registers a schedule from its own file, during static initialisation:
//   const RegisterSchedule kRegister({.name = "gpipe", ...});
// The table is complete before main and never changes after. Registering a name twice ends the program with a
// message: it is a defect of the build.
class RegisterSchedule {
 public:
  explicit RegisterSchedule(ScheduleGenerator generator);
};

// All that are linked, by name in ascending order.
std::vector<ScheduleGenerator> AllSchedules();

// Makes a schedule that computes alone; `lowering.h` adds the communication. It passes `CheckSchedule`.
//
// Errors: InvalidArgument for a name that there is not (lists those that there are), for ranks or
//         microbatches below 1 or more than 10,000, for more than 4,000,000 stages times microbatches, for
//         chunks that the schedule does not take, and for a count of microbatches that it forbids: the error
//         names the legal counts nearest to it, or says that there is none.
PipelineSchedule GenerateSchedule(absl::string_view name, const ScheduleSize& size);

}  // namespace weft

#endif  // WEFT_PARALLEL_PIPELINE_GENERATOR_H_

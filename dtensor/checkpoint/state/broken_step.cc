#include "dtensor/checkpoint/state/broken_step.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtensor/checkpoint/folder/shared_elements.h"
#include "dtensor/checkpoint/folder/step_folder.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// A rank tells of this many pieces: a report is small.
constexpr int kMostTold = 64;

// "STEP OFFSET CRC FILE" for each, a line each.
std::string Report(const std::set<ElementsPlace>& places) {
  std::string text;
  int num_told = 0;
  for (const ElementsPlace& place : places) {
    if (num_told++ == kMostTold) break;
    absl::StrAppend(&text, place.step, " ", place.offset, " ", place.crc32c, " ", place.file, "\n");
  }
  return text;
}

void TakeReport(const std::string& report, std::set<ElementsPlace>* places) {
  for (const absl::string_view line : absl::StrSplit(report, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 3));
    ElementsPlace place;
    const bool is_read = words.size() == 4 && absl::SimpleAtoi(words[0], &place.step) &&
                         absl::SimpleAtoi(words[1], &place.offset) &&
                         absl::SimpleAtoi(words[2], &place.crc32c);
    WEFT_CHECK(is_read, report);
    place.file = words[3];
    places->insert(std::move(place));
  }
}

std::string FilesOf(const std::string& folder, const std::set<ElementsPlace>& places) {
  std::set<std::string> paths;
  for (const ElementsPlace& place : places) {
    paths.insert(absl::StrCat("'", JoinPath(JoinPath(folder, StepName(place.step)), place.file), "'"));
  }
  return absl::StrJoin(paths, ", ");
}

// The steps that have what is broken, the highest first: a lower one that is gone would break those that refer to it.
std::vector<int64_t> StepsToSetAside(Files& files, const std::string& folder, int64_t step,
                                     const std::set<ElementsPlace>& broken, std::string* told) {
  if (broken.empty()) return {step};
  const std::string what = absl::StrCat("what is broken lies in ", FilesOf(folder, broken));
  try {
    std::vector<int64_t> steps = StepsThatHave(files, folder, broken);
    if (!std::count(steps.begin(), steps.end(), step)) steps.push_back(step);
    std::sort(steps.rbegin(), steps.rend());
    *told = absl::StrCat(what, ", which ", steps.size(), " steps have elements in; ");
    return steps;
  } catch (const Error& failure) {
    *told = absl::StrCat(what, "; which other steps have it cannot be read: ", failure.message(), "; ");
    return {step};
  }
}

std::string SetAside(Files& files, const std::string& folder, int64_t step,
                     const std::set<ElementsPlace>& broken) {
  std::string told, failed;
  std::vector<std::string> paths;
  bool is_gone = false;
  for (const int64_t each : StepsToSetAside(files, folder, step, broken, &told)) {
    try {
      paths.push_back(absl::StrCat("'", SetStepAside(files, folder, each), "'"));
      is_gone |= each == step;
    } catch (const Error& failure) {
      failed = failure.message();
      break;
    }
  }
  if (!paths.empty()) {
    absl::StrAppend(&told, paths.size() > 1 ? "the steps are now " : "the step is now ",
                    absl::StrJoin(paths, ", "));
  }
  if (!is_gone) {
    const absl::string_view and_then = paths.empty() ? "" : "; ";
    return absl::StrCat(told, and_then, "the step stays, so that the next start takes it again: ", failed);
  }
  if (!failed.empty()) absl::StrAppend(&told, "; the others stay: ", failed);
  return absl::StrCat(told, ", and the next start takes an older one");
}

}  // namespace

std::string SetBrokenStepAside(Agreement& agreement, Files& files, const std::string& folder, int64_t step) {
  const auto look = [&] {
    try {
      return Report(BrokenReferences(files, folder, step, {agreement.rank(), agreement.size()}));
    } catch (const Error&) {
      return std::string();  // what this rank cannot read now it says nothing of
    }
  };
  const auto conclude = [&](const std::vector<std::string>& reports) {
    std::set<ElementsPlace> broken;
    for (const std::string& report : reports) TakeReport(report, &broken);
    return SetAside(files, folder, step, broken);
  };
  return agreement.Agree({.part = look, .conclude = conclude});
}

}  // namespace weft

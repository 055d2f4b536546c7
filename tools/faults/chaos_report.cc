#include "tools/faults/chaos_report.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

using std::chrono::milliseconds;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

std::string ChaosReport::ToJson() const {
  const auto rounded = [](double seconds) { return std::round(1000 * seconds) / 1000; };
  return nlohmann::ordered_json{{"kills", kills},
                                {"recovered", recovered},
                                {"equal", equal},
                                {"median_s", rounded(median_s)},
                                {"worst_s", rounded(worst_s)},
                                {"left_behind", left_behind},
                                {"in_save", in_save},
                                {"in_restart", in_restart},
                                {"skipped", skipped},
                                {"restart_s", rounded(restart_s)},
                                {"meet_s", rounded(meet_s)},
                                {"load_s", rounded(load_s)},
                                {"within_target", within_target}}
      .dump();
}

std::optional<double> TargetSeconds(Fault fault, milliseconds suspicion_time) {
  constexpr double kTarget = 5;
  switch (fault) {
    case Fault::kRank:
      return kTarget;
    case Fault::kStop:
    case Fault::kHost:
    case Fault::kHosts:
      return kTarget + std::chrono::duration<double>(suspicion_time).count();
    default:
      return std::nullopt;
  }
}

void RecoveryTimes::Postpone(Clock::time_point since) {
  for (auto& [fault, at] : waiting_) at = std::max(at, since);
}

double RecoveryTimes::Answer(Clock::time_point step) {
  const auto seconds_since = [step](Clock::time_point at) {
    return std::max(0.0, std::chrono::duration<double>(step - at).count());
  };
  const double last = seconds_since(last_strike());
  // Behind any other fault the time of an earlier one says nothing: a stopped rank, say, is missed only after the suspicion
  // time.
  for (bool is_last = true; !waiting_.empty(); is_last = false) {
    const auto [fault, at] = waiting_.back();
    Seconds& seconds = seconds_[fault];
    (is_last ? seconds.alone : seconds.before_kills).push_back(seconds_since(at));
    waiting_.pop_back();
    if (fault != Fault::kRank) waiting_.clear();
  }
  return last;
}

void RecoveryTimes::AddParts(const std::array<Clock::time_point, 4>& times) {
  for (size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].push_back(std::max(0.0, std::chrono::duration<double>(times[i + 1] - times[i]).count()));
  }
}

void RecoveryTimes::Summarize(milliseconds suspicion_time, const std::function<void(const std::string&)>& say,
                              ChaosReport* report) const {
  std::vector<double> all;
  const auto tell = [&](const std::string& what, const std::vector<double>& seconds,
                        std::optional<double> target) {
    if (seconds.empty()) return;
    const double worst = *absl::c_max_element(seconds);
    const bool is_held = !target || worst <= *target;
    report->within_target = report->within_target && is_held;
    say(absl::StrFormat(
        "%s: %d times, a step %.2f s later (median; worst %.2f s%s)", what, seconds.size(), Median(seconds),
        worst, target ? absl::StrFormat("; target %.1f s, %s", *target, is_held ? "held" : "MISSED") : ""));
    absl::c_copy(seconds, std::back_inserter(all));
  };
  for (const auto& [fault, seconds] : seconds_) {
    const std::string name(FaultName(fault));
    tell(name, seconds.alone, TargetSeconds(fault, suspicion_time));
    tell(name + ", ranks killed before the step", seconds.before_kills, std::nullopt);
  }
  if (all.empty()) return;
  report->median_s = Median(all);
  report->worst_s = *absl::c_max_element(all);
  if (parts_[0].empty()) return;
  report->restart_s = Median(parts_[0]);
  report->meet_s = Median(parts_[1]);
  report->load_s = Median(parts_[2]);
  say(absl::StrFormat(
      "of them %.2f s until all ranks run, %.2f s until they have met, %.2f s until a step (medians)",
      report->restart_s, report->meet_s, report->load_s));
}

}  // namespace weft

#include "benchmarks/figure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/error.h"

ABSL_FLAG(std::string, log_format, "text", "text, or json: one object a line");

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

double NanosecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

std::string NumberOrNull(double x) { return x == 0 ? "null" : absl::StrFormat("%.6g", x); }

bool Passes(const Figure& figure, double ratio) {
  if (figure.tolerance > 0) return std::abs(ratio - figure.target) <= figure.tolerance;
  return figure.less_is_better ? ratio <= figure.target : ratio >= figure.target;
}

std::string TargetText(const Figure& figure) {
  if (figure.tolerance > 0) return absl::StrFormat("%.4g +- %.4g", figure.target, figure.tolerance);
  return absl::StrFormat("%s %.4g", figure.less_is_better ? "<=" : ">=", figure.target);
}

}  // namespace

void Report(const Figure& figure) {
  const std::string format = absl::GetFlag(FLAGS_log_format);
  WEFT_REQUIRE(format == "text" || format == "json", "--log_format=", format, ": expected text or json");
  const double ratio = figure.limit == 0 ? 0 : figure.value / figure.limit;
  const bool is_judged = figure.limit != 0 && figure.target != 0;
  const bool pass = Passes(figure, ratio);
  if (format == "json") {
    absl::PrintF(
        "{\"name\":\"%s\",\"value\":%.6g,\"unit\":\"%s\",\"limit\":%s,\"limit_is\":\"%s\",\"ratio\":%s,"
        "\"target\":%s,\"pass\":%s}\n",
        figure.name, figure.value, figure.unit, NumberOrNull(figure.limit), figure.limit_is,
        NumberOrNull(ratio), NumberOrNull(figure.target), is_judged ? (pass ? "true" : "false") : "null");
  } else {
    std::string beside;
    if (figure.limit != 0) {
      beside = absl::StrFormat("%.2f of %.4g (%s)", ratio, figure.limit, figure.limit_is);
    }
    if (is_judged) {
      absl::StrAppend(&beside, ", target ", TargetText(figure), ": ", pass ? "met" : "missed");
    }
    absl::PrintF("%-44s %10.4g %-9s %s\n", figure.name, figure.value, figure.unit, beside);
  }
  std::fflush(stdout);
}

double MedianNanoseconds(const std::function<void()>& call, double seconds,
                         const std::function<void()>& finish) {
  constexpr double kBatchNanoseconds = 2e6;
  call();
  finish();
  const Clock::time_point first = Clock::now();
  call();
  finish();
  const double estimate = std::max(NanosecondsSince(first), 20.0);
  const int64_t batch = std::max<int64_t>(1, static_cast<int64_t>(kBatchNanoseconds / estimate));
  std::vector<double> times;
  const Clock::time_point begin = Clock::now();
  while (times.size() < 5 || NanosecondsSince(begin) < seconds * 1e9) {
    const Clock::time_point start = Clock::now();
    for (int64_t i = 0; i < batch; ++i) call();
    finish();
    times.push_back(NanosecondsSince(start) / static_cast<double>(batch));
  }
  return Median(std::move(times));
}

double Median(std::vector<double> values) {
  WEFT_CHECK(!values.empty(), "the median of nothing");
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace weft

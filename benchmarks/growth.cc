#include "benchmarks/growth.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "benchmarks/figure.h"
#include "runtime/base/error.h"

namespace weft {

double FittedExponent(const std::vector<CostPoint>& points) {
  double mean_x = 0, mean_y = 0;
  for (const CostPoint& point : points) {
    WEFT_REQUIRE(point.size > 0 && point.us > 0, "an exponent is fitted to positive sizes and costs, got ",
                 point.us, " us at ", point.size);
    mean_x += std::log(point.size) / static_cast<double>(points.size());
    mean_y += std::log(point.us) / static_cast<double>(points.size());
  }
  double covariance = 0, variance = 0;
  for (const CostPoint& point : points) {
    const double x = std::log(point.size) - mean_x;
    covariance += x * (std::log(point.us) - mean_y);
    variance += x * x;
  }
  WEFT_REQUIRE(points.size() >= 2 && variance > 1e-12, "an exponent is fitted to at least two sizes, got ",
               points.size(), " points");
  return covariance / variance;
}

double LargestExponent(GrowthTarget target) { return target == GrowthTarget::kFlat ? 0.1 : 1.1; }

void MeasureGrowth(const GrowthSeries& series) {
  std::vector<CostPoint> points;
  for (int64_t size : series.sizes) {
    const double us = series.microseconds(size);
    points.push_back({static_cast<double>(size), us});
    Report({.name = absl::StrCat("scale/", series.name, "/", size), .value = us, .unit = "us"});
  }
  Report({.name = absl::StrCat("scale/", series.name, "/exponent"),
          .value = FittedExponent(points),
          .unit = "exponent",
          .limit = LargestExponent(series.target),
          .limit_is = series.target == GrowthTarget::kFlat ? "flat" : "linear",
          .target = 1,
          .less_is_better = true});
}

}  // namespace weft

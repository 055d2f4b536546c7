#ifndef WEFT_BENCHMARKS_GROWTH_H_
#define WEFT_BENCHMARKS_GROWTH_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace weft {

// What something of one size costs.
struct CostPoint {
  double size = 0;
  double us = 0;

  bool operator==(const CostPoint&) const = default;
};

// The exponent e of the power law us = c * size^e that lies closest to the points: the slope of log(us) over
// log(size) by least squares. 0 where the cost does not grow, 1 where it grows in proportion, 2 where it is
// quadratic.
// Errors: InvalidArgument for fewer than two different sizes, or sizes or costs that are not positive.
double FittedExponent(const std::vector<CostPoint>& points);

// How a cost may grow.
enum class GrowthTarget : uint8_t { kFlat, kLinear };

// The largest exponent that still counts as that.
double LargestExponent(GrowthTarget target);

// A cost measured at several sizes.
struct GrowthSeries {
  std::string name = {};  // "training/layers"
  GrowthTarget target = GrowthTarget::kLinear;
  std::vector<int64_t> sizes = {};
  std::function<double(int64_t size)> microseconds;
};

// Measures the series and reports a figure a point, "scale/NAME/SIZE", and one with the fitted exponent,
// "scale/NAME/exponent", held against the target.
void MeasureGrowth(const GrowthSeries& series);

}  // namespace weft

#endif  // WEFT_BENCHMARKS_GROWTH_H_

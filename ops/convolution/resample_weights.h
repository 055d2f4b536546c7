#ifndef WEFT_OPS_CONVOLUTION_RESAMPLE_WEIGHTS_H_
#define WEFT_OPS_CONVOLUTION_RESAMPLE_WEIGHTS_H_

#include <cstdint>

#include "ops/convolution/resample.h"

namespace weft {

// The matrix of a resampling along one dim, by its elements: y_i = sum over j of Weight(i, j) x_j. What the
// kernels of every device evaluate.
//
// Rows are bands whose ends rise with i, so a column's rows are found by bisection and the transpose needs no
// table of its own.
struct ResampleWeights {
  int64_t in = 1;   // extent of x
  int64_t out = 1;  // of y
  ResampleMode mode = ResampleMode::kNearest;
  bool align_corners = false;
  double scale = 0;
  double step = 1;  // places of x per place of y

  // The columns that row i has weights in, both included.
  struct Band {
    int64_t first = 0;
    int64_t last = 0;
  };

  constexpr Band Row(int64_t i) const {
    switch (mode) {
      case ResampleMode::kNearest:
      case ResampleMode::kNearestExact: {
        const int64_t j = Nearest(i);
        return {j, j};
      }
      case ResampleMode::kArea:
        return {i * in / out, ((i + 1) * in + out - 1) / out - 1};
      case ResampleMode::kLinear: {
        const int64_t j = Cut(Floor(Place(i)));
        return {j, Cut(j + 1)};
      }
      case ResampleMode::kCubic: {
        const int64_t j = Floor(Place(i));
        return {Cut(j - 1), Cut(j + 2)};
      }
    }
    return {};
  }

  // 0 outside Row(i).
  constexpr double Weight(int64_t i, int64_t j) const {
    const Band band = Row(i);
    if (j < band.first || j > band.last) return 0;
    switch (mode) {
      case ResampleMode::kNearest:
      case ResampleMode::kNearestExact:
        return 1;
      case ResampleMode::kArea:
        return 1.0 / static_cast<double>(band.last - band.first + 1);
      case ResampleMode::kLinear: {
        const double upper = band.last == band.first ? 0 : Place(i) - static_cast<double>(band.first);
        return j == band.first ? 1 - upper : upper;
      }
      case ResampleMode::kCubic:
        return CubicWeight(i, j);
    }
    return 0;
  }

  // The rows that column j has weights in; none if first > last.
  constexpr Band Column(int64_t j) const {
    return {FirstRow(j, /*past=*/false), FirstRow(j, /*past=*/true) - 1};
  }

 private:
  // constexpr, since device code may call what is; std::floor is not.
  static constexpr int64_t Floor(double place) {
    const auto whole = static_cast<int64_t>(place);
    return static_cast<double>(whole) > place ? whole - 1 : whole;
  }

  constexpr int64_t Cut(int64_t j) const { return j < 0 ? 0 : j < in ? j : in - 1; }

  // By whole numbers where the extents say the scale: a rounded quotient would miss by one at exact places.
  constexpr int64_t Nearest(int64_t i) const {
    const bool exact = mode == ResampleMode::kNearestExact;
    if (scale == 0) return exact ? (2 * i + 1) * in / (2 * out) : i * in / out;
    return Cut(Floor((static_cast<double>(i) + (exact ? 0.5 : 0)) * step));
  }

  // Where element i of y lies among those of x.
  constexpr double Place(int64_t i) const {
    if (align_corners) return static_cast<double>(i) * step;
    const double place = (static_cast<double>(i) + 0.5) * step - 0.5;
    return mode == ResampleMode::kLinear && place < 0 ? 0 : place;
  }

  // Places beyond the edges are the edge's, so that its weight is the sum of theirs.
  constexpr double CubicWeight(int64_t i, int64_t j) const {
    const double place = Place(i);
    const int64_t below = Floor(place);
    double sum = 0;
    for (int64_t k = below - 1; k <= below + 2; ++k) {
      if (Cut(k) == j) sum += Cubic(place - static_cast<double>(k));
    }
    return sum;
  }

  static constexpr double Cubic(double distance) {
    constexpr double a = -0.75;
    const double t = distance < 0 ? -distance : distance;
    if (t <= 1) return ((a + 2) * t - (a + 3)) * t * t + 1;
    return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a;
  }

  // The first row whose band reaches j (past: lies beyond it), or `out`.
  constexpr int64_t FirstRow(int64_t j, bool past) const {
    int64_t low = 0;
    int64_t high = out;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      const Band band = Row(middle);
      if (past ? band.first > j : band.last >= j) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
};

// Those of a resampling of `in` places to `out`.
inline ResampleWeights MakeResampleWeights(const ResampleAttributes& a, int64_t in, int64_t out) {
  ResampleWeights weights = {
      .in = in, .out = out, .mode = a.mode, .align_corners = a.align_corners, .scale = a.scale};
  if (a.align_corners) {
    weights.step = out > 1 ? static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0;
  } else {
    weights.step = a.scale > 0 ? 1 / a.scale : static_cast<double>(in) / static_cast<double>(out);
  }
  return weights;
}

}  // namespace weft

#endif  // WEFT_OPS_CONVOLUTION_RESAMPLE_WEIGHTS_H_

#include "parallel/pipeline/stages.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "parallel/pipeline/schedule.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// The best cut of the first so many segments into so many parts.
struct Best {
  double cost = std::numeric_limits<double>::infinity();
  int last = 0;  // the length of the last part
};

// By parts and end, where a part may cost `limit` at most, and `join` says what parts cost together. `sums`: of the
// first costs, from none on. Of equals the one whose last part is shorter, so that those before it are longer.
template <class Join>
std::vector<std::vector<Best>> LeastCosts(absl::Span<const double> sums, int num_parts, double limit,
                                          Join join) {
  const int n = static_cast<int>(sums.size()) - 1;
  std::vector<std::vector<Best>> best(num_parts + 1, std::vector<Best>(n + 1));
  best[0][0].cost = 0;
  for (int parts = 1; parts <= num_parts; ++parts) {
    for (int end = parts; end <= n; ++end) {
      for (int last = 1; last <= end - parts + 1; ++last) {
        const double cost = sums[end] - sums[end - last];
        const double together = join(best[parts - 1][end - last].cost, cost);
        if (cost <= limit && together < best[parts][end].cost) best[parts][end] = {together, last};
      }
    }
  }
  return best;
}

}  // namespace

std::vector<int> StageRanks(StageOrder order, int ranks, int chunks) {
  WEFT_REQUIRE(order == StageOrder::kLoop || chunks == 2,
               "stages that lie there and back: expected 2 chunks, got ", chunks);
  return order == StageOrder::kV ? VPlacement(ranks) : LoopPlacement(ranks, chunks);
}

std::vector<int> BalanceChain(absl::Span<const double> costs, int num_parts) {
  const int n = static_cast<int>(costs.size());
  WEFT_REQUIRE(num_parts >= 1 && num_parts <= n, "a chain of ", n, " segments cannot be cut into ", num_parts,
               " stages: each has at least one");
  double most = 0;
  for (int i = 0; i < n; ++i) {
    WEFT_REQUIRE(std::isfinite(costs[i]) && costs[i] >= 0, "the cost of segment ", i, " is ", costs[i],
                 "; expected a finite number, at least 0");
    most = std::max(most, costs[i]);
  }
  // So that the largest is below 1, and at least a half: no square is infinite, nor are all of them 0. By a power of two,
  // which rounds nothing: equal parts stay equal.
  int exponent = 0;
  std::frexp(most, &exponent);
  std::vector<double> sums = {0};  // of the first costs
  for (const double cost : costs) sums.push_back(sums.back() + std::ldexp(cost, -exponent));
  // First how cheap the costliest part can be, then, among the cuts whose parts all are, the most even.
  const double limit =
      LeastCosts(sums, num_parts, std::numeric_limits<double>::infinity(),
                 [](double before, double cost) { return std::max(before, cost); })[num_parts][n]
          .cost;
  const auto best =
      LeastCosts(sums, num_parts, limit, [](double before, double cost) { return before + cost * cost; });
  std::vector<int> lengths(num_parts);
  for (int parts = num_parts, end = n; parts > 0; --parts) {
    lengths[parts - 1] = best[parts][end].last;
    end -= lengths[parts - 1];
  }
  return lengths;
}

}  // namespace weft

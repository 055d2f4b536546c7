// topk: the elements of largest magnitude.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "parallel/compression/methods/sparse_compressor.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

class TopK final : public SparseSelection {
 public:
  // Of equal magnitudes the lower index.
  void Select(absl::Span<const double> values, const RandomKey& /*key*/,
              absl::Span<SparseEntry> entries) const override {
    std::vector<int32_t> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    const auto is_before = [&](int32_t a, int32_t b) {
      const double size_a = std::abs(values[a]), size_b = std::abs(values[b]);
      return size_a != size_b ? size_a > size_b : a < b;
    };
    const auto end = order.begin() + static_cast<int64_t>(entries.size());
    if (end != order.end()) std::nth_element(order.begin(), end, order.end(), is_before);
    std::sort(order.begin(), end);
    for (size_t i = 0; i < entries.size(); ++i) {
      entries[i] = {.index = order[i], .value = static_cast<float>(values[order[i]])};
    }
  }
};

std::unique_ptr<Compressor> Make(const CommunicationMethod& method) {
  return std::make_unique<SparseCompressor>(std::make_unique<TopK>(),
                                            SparseOptions{.fraction = method.Get("fraction"),
                                                          .error_feedback = method.GetFlag("error_feedback"),
                                                          .momentum = method.Get("momentum"),
                                                          .masking = method.GetFlag("masking")});
}

void Check(const CommunicationMethod& method) {
  WEFT_REQUIRE(method.Get("momentum") == 0 || method.GetFlag("error_feedback"), "communication '",
               method.ToString(), "': momentum is of what adds up until it is sent; it needs error_feedback");
}

// Velocities are of terms: sums of them have theirs.
CommunicationMethod OfReplicas(const CommunicationMethod& method) {
  CommunicationMethod of_sums = method;
  of_sums.arguments.erase("momentum");
  of_sums.arguments.erase("masking");
  return of_sums;
}

const RegisterCompressor kRegister({
    .name = "topk",
    .arguments =
        {
            FractionArgument(),
            {.name = "momentum", .standard = 0, .most = 0.9999},
            {.name = "masking", .type = MethodArgument::Type::kFlag, .standard = 1},
            ErrorFeedbackArgument(),
        },
    .make = Make,
    .check = Check,
    .of_replicas = OfReplicas,
});

}  // namespace
}  // namespace weft

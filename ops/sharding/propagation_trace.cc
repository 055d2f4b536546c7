#include "ops/sharding/propagation_trace.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "mesh/redistribution/price.h"

namespace weft {

std::string CallText(absl::string_view name, absl::Span<const TensorType> types,
                     absl::Span<const Layout> layouts, const DeviceMesh& mesh) {
  std::string text = absl::StrCat(name, "(");
  for (size_t i = 0; i < types.size(); ++i) {
    absl::StrAppend(&text, i > 0 ? ", " : "", types[i].ToString(), " ", layouts[i].ToString(mesh));
  }
  return text + ")";
}

std::string NearestLegalLayouts(const PropagationTrace& trace, absl::Span<const TensorType> types,
                                absl::Span<const Layout> layouts, const DeviceMesh& mesh,
                                const CostModel& cost_model) {
  constexpr size_t kAtMost = 3;
  struct Offer {
    const TracedCandidate* candidate;
    double microseconds = 0;
    int64_t num_bytes = 0;
  };
  std::vector<Offer> nearest;
  for (const TracedCandidate& candidate : trace.candidates) {
    if (candidate.operands.empty() || candidate.fate == CandidateFate::kMovesInPlace) continue;
    const bool listed = std::any_of(nearest.begin(), nearest.end(), [&](const Offer& other) {
      return other.candidate->operands == candidate.operands;
    });
    if (listed) continue;
    Offer offer = {.candidate = &candidate};
    for (size_t i = 0; i < types.size(); ++i) {
      const RedistributionPrice price =
          PriceRedistribution(layouts[i], candidate.operands[i], types[i], mesh, cost_model);
      offer.microseconds += price.microseconds;
      offer.num_bytes += price.num_bytes;
    }
    nearest.push_back(offer);
  }
  std::stable_sort(nearest.begin(), nearest.end(),
                   [](const Offer& a, const Offer& b) { return a.microseconds < b.microseconds; });
  nearest.resize(std::min(nearest.size(), kAtMost));
  if (nearest.empty()) return "";
  const auto append = [&](std::string* out, const Offer& offer) {
    const auto layout_text = [&](std::string* text, const Layout& layout) {
      text->append(layout.ToString(mesh));
    };
    absl::StrAppend(out, "(", absl::StrJoin(offer.candidate->operands, ", ", layout_text), ") for ",
                    offer.num_bytes, " bytes, ", absl::StrFormat("%.1f us", offer.microseconds));
  };
  return absl::StrCat("nearest legal layouts: ", absl::StrJoin(nearest, "; ", append));
}

}  // namespace weft

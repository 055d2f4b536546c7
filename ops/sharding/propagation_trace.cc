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
  std::vector<const TracedCandidate*> nearest;
  for (const TracedCandidate& candidate : trace.candidates) {
    if (candidate.operands.empty() || candidate.fate == CandidateFate::kMovesInPlace) continue;
    const bool listed = std::any_of(nearest.begin(), nearest.end(), [&](const TracedCandidate* other) {
      return other->operands == candidate.operands;
    });
    if (!listed) nearest.push_back(&candidate);
  }
  std::stable_sort(nearest.begin(), nearest.end(), [](const TracedCandidate* a, const TracedCandidate* b) {
    return a->transfer_us < b->transfer_us;
  });
  nearest.resize(std::min(nearest.size(), kAtMost));
  if (nearest.empty()) return "";
  const auto append = [&](std::string* out, const TracedCandidate* candidate) {
    int64_t num_bytes = 0;
    for (size_t i = 0; i < types.size(); ++i) {
      num_bytes += RedistributionBytes(layouts[i], candidate->operands[i], types[i], mesh, cost_model);
    }
    const auto layout_text = [&](std::string* text, const Layout& layout) {
      text->append(layout.ToString(mesh));
    };
    absl::StrAppend(out, "(", absl::StrJoin(candidate->operands, ", ", layout_text), ") for ", num_bytes,
                    " bytes, ", absl::StrFormat("%.1f us", candidate->transfer_us));
  };
  return absl::StrCat("nearest legal layouts: ", absl::StrJoin(nearest, "; ", append));
}

}  // namespace weft

#include "ops/declare/dim_factors.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft {

std::string DimFactors(int ndim, int dim, absl::string_view factor) {
  std::vector<std::string> names;
  for (int i = 0; i < ndim; ++i) names.push_back(i == dim ? std::string(factor) : absl::StrCat("f", i));
  return absl::StrJoin(names, " ");
}

std::string OtherFactors(int ndim, int dim) {
  std::vector<std::string> names;
  for (int i = 0; i < ndim; ++i) {
    if (i != dim) names.push_back(absl::StrCat("f", i));
  }
  return names.empty() ? "()" : absl::StrJoin(names, " ");
}

}  // namespace weft

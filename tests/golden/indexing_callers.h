#ifndef WEFT_TESTS_GOLDEN_INDEXING_CALLERS_H_
#define WEFT_TESTS_GOLDEN_INDEXING_CALLERS_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "dtensor/dtensor.h"
#include "nlohmann/json.hpp"

namespace weft {

// How an op of ops.json is called here: its outputs, from its operands and attributes.
using GoldenCaller = std::function<std::vector<DTensor>(const std::vector<DTensor>& operands,
                                                        const nlohmann::json& attributes)>;

// Those of slices, selections, scatters and interpolation.
std::map<std::string, GoldenCaller> IndexingCallers();

}  // namespace weft

#endif  // WEFT_TESTS_GOLDEN_INDEXING_CALLERS_H_

// Where a run stands in its data: what a checkpoint keeps of a Loader.

#ifndef WEFT_RUNTIME_DATA_LOADER_DATA_POSITION_H_
#define WEFT_RUNTIME_DATA_LOADER_DATA_POSITION_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace weft {

// How many samples have been consumed, over all ranks, and of which sequence. Nothing of it depends on ranks or batches, so
// a run goes on from it on others. A value.
struct DataPosition {
  int64_t samples = 0;
  std::string sampler;  // Sampler::ToString

  // {"samples":1200,"sampler":"shuffled(9345, seed 1337)"}
  std::string ToJson() const;
  // Errors: DataLoss if `json` is not what ToJson writes.
  static DataPosition FromJson(absl::string_view json);

  bool operator==(const DataPosition&) const = default;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_DATA_LOADER_DATA_POSITION_H_

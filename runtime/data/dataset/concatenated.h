// Several datasets as one.

#ifndef WEFT_RUNTIME_DATA_DATASET_CONCATENATED_H_
#define WEFT_RUNTIME_DATA_DATASET_CONCATENATED_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/data/dataset/dataset.h"

namespace weft {

// The samples of several datasets, one dataset after another: what a MixtureSampler draws from.
//
// Cost: O(log datasets) per sample.
class ConcatenatedDataset final : public Dataset {
 public:
  // Errors: InvalidArgument for none, a null one, or datasets of other fields than the first's (names both).
  explicit ConcatenatedDataset(std::vector<std::shared_ptr<const Dataset>> datasets);

  int64_t num_samples() const override { return first_index_.back(); }
  const std::vector<SampleField>& fields() const override { return datasets_.front()->fields(); }
  void Read(int64_t index, absl::Span<const FieldBytes> fields) const override;
  std::string NameOf(int64_t index) const override;

 private:
  size_t Holding(int64_t index) const;

  std::vector<std::shared_ptr<const Dataset>> datasets_;
  std::vector<int64_t> first_index_;  // of each dataset; all samples at the end
};

}  // namespace weft

#endif  // WEFT_RUNTIME_DATA_DATASET_CONCATENATED_H_

#include "runtime/data/dataset/concatenated.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "runtime/base/error.h"
#include "runtime/tensor/tensor.h"

namespace weft {
namespace {

std::string FieldsText(const Dataset& dataset) {
  return absl::StrJoin(dataset.fields(), ", ", [](std::string* out, const SampleField& field) {
    absl::StrAppend(out, field.name, " ", TypeString(field.dtype, field.shape));
  });
}

}  // namespace

ConcatenatedDataset::ConcatenatedDataset(std::vector<std::shared_ptr<const Dataset>> datasets)
    : datasets_(std::move(datasets)) {
  WEFT_REQUIRE(!datasets_.empty(), "concatenated: expected at least one dataset");
  first_index_ = {0};
  for (size_t k = 0; k < datasets_.size(); ++k) {
    WEFT_REQUIRE(datasets_[k] != nullptr, "concatenated: dataset ", k, " is null");
    WEFT_REQUIRE(datasets_[k]->fields() == datasets_[0]->fields(), "concatenated: dataset ", k, " has ",
                 FieldsText(*datasets_[k]), ", the first has ", FieldsText(*datasets_[0]));
    first_index_.push_back(first_index_.back() + datasets_[k]->num_samples());
  }
}

size_t ConcatenatedDataset::Holding(int64_t index) const {
  // Of datasets that begin at the same index, the last: the others are empty.
  return static_cast<size_t>(std::upper_bound(first_index_.begin(), first_index_.end(), index) -
                             first_index_.begin() - 1);
}

void ConcatenatedDataset::Read(int64_t index, absl::Span<const FieldBytes> fields) const {
  const size_t k = Holding(index);
  datasets_[k]->Read(index - first_index_[k], fields);
}

std::string ConcatenatedDataset::NameOf(int64_t index) const {
  const size_t k = Holding(index);
  return datasets_[k]->NameOf(index - first_index_[k]);
}

}  // namespace weft

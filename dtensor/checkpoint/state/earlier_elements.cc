#include "dtensor/checkpoint/state/earlier_elements.h"

#include <utility>

#include "dtensor/checkpoint/folder/step_folder.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"

namespace weft {

EarlierElements::EarlierElements(Files& files, const std::string& folder, int64_t step, PieceTable table)
    : files_(files), folder_(folder), step_(step), table_(std::move(table)) {}

void EarlierElements::ReferFrom(PieceToSave* piece) {
  const auto known = table_.find(piece->name);
  if (known == table_.end()) return;
  const PieceRecord& record = known->second;
  if (!record.at || !record.crc64 || record.dtype != piece->record.dtype || record.box != piece->record.box) {
    return;
  }
  const int64_t num_bytes = piece->record.num_bytes();
  if (record.at->step >= step_ || !Holds(*record.at, num_bytes)) return;
  if (Crc32c(piece->elements.data(), num_bytes) != record.crc32c ||
      Crc64(piece->elements.data(), num_bytes) != *record.crc64) {
    return;
  }
  piece->record = record;
}

bool EarlierElements::Holds(const PieceReference& at, int64_t num_bytes) {
  const std::string path = JoinPath(JoinPath(folder_, StepName(at.step)), at.file);
  const auto [size, is_new] = sizes_.try_emplace(path, -1);
  if (is_new) {
    try {
      size->second = files_.SizeOf(path).value_or(-1);
    } catch (const Error&) {
      // To write once more is no harm.
    }
  }
  return size->second - at.offset >= num_bytes;
}

}  // namespace weft

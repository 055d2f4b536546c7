// Elements that lie in an earlier step of the folder, so that they need not be written again.

#ifndef WEFT_DTENSOR_CHECKPOINT_STATE_EARLIER_ELEMENTS_H_
#define WEFT_DTENSOR_CHECKPOINT_STATE_EARLIER_ELEMENTS_H_

#include <cstdint>
#include <map>
#include <string>

#include "dtensor/checkpoint/files/files.h"
#include "dtensor/checkpoint/folder/piece_file.h"

namespace weft {

// What a step that is written may refer to. One per save and rank; it views `files`.
class EarlierElements {
 public:
  // `table`: of the rank's last save; its records say where their elements lie. `step`: that is written.
  EarlierElements(Files& files, const std::string& folder, int64_t step, PieceTable table);

  // Where both checksums say that the piece has the elements of the table: refers to them, if they are those of a lower step,
  // whose file is there and reaches behind them. A higher one may be removed by a program that went back.
  // Cost: two reads of the elements, if there are any to compare them with; the size of each file is asked for once.
  void ReferFrom(PieceToSave* piece);

 private:
  bool Holds(const PieceReference& at, int64_t num_bytes);

  Files& files_;
  const std::string folder_;
  const int64_t step_;
  const PieceTable table_;
  std::map<std::string, int64_t> sizes_;  // by path; -1: it is not there, or cannot be looked at
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_STATE_EARLIER_ELEMENTS_H_

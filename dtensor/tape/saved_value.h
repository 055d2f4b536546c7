#ifndef WEFT_DTENSOR_TAPE_SAVED_VALUE_H_
#define WEFT_DTENSOR_TAPE_SAVED_VALUE_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "dtensor/dtensor.h"
#include "dtensor/tape/saved_buffer.h"

namespace weft {

// A value that backward will read: kept as it is; where the rank's state says so (RankState::saves_on_host), in the
// second memory; or, for a parameter's cast or redistributed copy and views and casts of
// such, as what it was made of and the dtype and layout to bring it to again. A cast that an update has left behind is kept as
// it is.
class SavedValue {
 public:
  SavedValue() = default;
  explicit SavedValue(DTensorRef value);

  // Cost:   the redistribution, for a parameter's copy, under purpose `param`.
  // Errors: FailedPrecondition naming `reader` and the op that has written to the value since it was saved,
  //         or, to a parameter, since the copy was made that was saved.
  DTensor Unpack(absl::string_view reader) const;
  bool defined() const { return value_.defined(); }
  // Of a parameter's copy or a view or cast of one: what it was made of; otherwise null.
  IntrusivePtr<const CopyOrigin> origin() const {
    return copy_ ? copy_->origin : IntrusivePtr<const CopyOrigin>();
  }

 private:
  DTensor value_;  // of a copy: the value at rest
  struct Copy {
    IntrusivePtr<const CopyOrigin> origin;
    DType dtype;
    Layout layout;
  };
  std::optional<Copy> copy_;
  int64_t version_ = 0;
  IntrusivePtr<SavedBuffer> there_;  // brought to the second memory for backward
};

// The same value in a handle of its own, with no history.
DTensor WithoutHistory(const DTensor& x);
// The other half: x's history without its elements, to begin a backward pass from, whose seed is given. So x may go.
DTensor HistoryOf(const DTensor& x);

// A parameter's copy as compute reads it: cast first, so that what moves is in the smaller dtype. No history.
DTensor MakeCopy(const DTensor& at_rest, DType dtype, const Layout& layout);

}  // namespace weft

#endif  // WEFT_DTENSOR_TAPE_SAVED_VALUE_H_

// Python's pickles, as data.

#ifndef WEFT_DTENSOR_CHECKPOINT_DCP_PICKLE_H_
#define WEFT_DTENSOR_CHECKPOINT_DCP_PICKLE_H_

#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace weft {

// A value of a pickle. It may be part of itself: follow it no deeper than you expect it to go.
struct PickleValue {
  enum Kind {
    kNone,
    kBool,
    kInt,
    kWideInt,  // of more than 64 bits: `text` is its bytes, little-endian, in two's complement
    kFloat,
    kText,
    kBytes,
    kTuple,
    kList,
    kDict,        // `pairs`
    kGlobal,      // a class or function: `text` is "module name"
    kObject,      // of the class or function `made_by` from `items`; `state`, if it was given one
    kPersistent,  // a reference out of the pickle: `state`
  };
  Kind kind = kNone;
  int64_t number = 0;  // kBool, kInt
  double real = 0;     // kFloat
  std::string text = {};
  std::vector<const PickleValue*> items = {};
  std::vector<std::pair<const PickleValue*, const PickleValue*>> pairs = {};
  const PickleValue* made_by = nullptr;
  const PickleValue* state = nullptr;

  // Under a text in a dict; null if there is none, or it is no dict.
  const PickleValue* Find(absl::string_view key) const;
  // Whether it is an object of this class or function, "module name".
  bool IsObjectOf(absl::string_view name) const;
};

// The values of one pickle, of protocols 2 to 5. Nothing is called: what a pickle would make by calling a function stays the
// function's name and its arguments.
class Pickle {
 public:
  // `classes`: the classes and functions, "module name", that it may name.
  // Errors: DataLoss that begins with `path`, for what is no whole pickle; Unimplemented, for opcodes and classes that are
  //         not listed, naming them.
  Pickle(const std::string& path, absl::string_view bytes, const std::set<std::string>& classes);
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  const PickleValue& value() const { return *value_; }

 private:
  friend class PickleMachine;
  std::deque<PickleValue> values_;  // own all; addresses stay
  const PickleValue* value_ = nullptr;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_DCP_PICKLE_H_

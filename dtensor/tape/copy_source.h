#ifndef WEFT_DTENSOR_TAPE_COPY_SOURCE_H_
#define WEFT_DTENSOR_TAPE_COPY_SOURCE_H_

#include <limits>

#include "dtensor/dtensor.h"

namespace weft {

// Makes the copies of parameters that compute reads: forward asks by way of Parameter::Value, backward by way
// of what the tape saved, which is never a copy. So a source decides how long a copy lives, and may make
// several together, or ahead of their use. A parameter without a source has each copy made anew.
//
// Threads: the rank's thread; every rank asks alike.
class CopySource {
 public:
  virtual ~CopySource() = default;

  // The copy, by the number that the parameter was given with the source: of the at-rest value as it is now, in
  // the compute dtype and layout, with no history. May be pending.
  // Errors: those of the redistribution.
  virtual DTensor Copy(int copy) = 0;

  // An optimizer has changed the parameter: what reads it next is known to come.
  virtual void Updated(int /*copy*/) {}

  // How many other copies, or sets of them, the next forward is expected to read first; the largest int: unknown.
  virtual int ReadOrder(int /*copy*/) const { return std::numeric_limits<int>::max(); }

  // The parameter is gone.
  virtual void Forget(int copy) noexcept = 0;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_TAPE_COPY_SOURCE_H_

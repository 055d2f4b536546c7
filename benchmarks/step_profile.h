#ifndef WEFT_BENCHMARKS_STEP_PROFILE_H_
#define WEFT_BENCHMARKS_STEP_PROFILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/trace/span.h"

namespace weft {

// Where one rank's time went: an op's kernel or a collective.
struct ProfileLine {
  std::string name;    // "contract", "comm all_reduce"
  double seconds = 0;  // all calls together
  int64_t num_calls = 0;

  bool operator==(const ProfileLine&) const = default;
};

// Rank 0's spans that began at `from_ns` of the tracer's time or later, added up by name, longest first. A
// span within another, such as a collective that an op waits for, counts as itself and not in the outer one.
std::vector<ProfileLine> ProfileOf(const Tracer& tracer, int64_t from_ns);

}  // namespace weft

#endif  // WEFT_BENCHMARKS_STEP_PROFILE_H_

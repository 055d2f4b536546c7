#ifndef WEFT_TOOLS_LAUNCHER_STREAM_CHOICE_H_
#define WEFT_TOOLS_LAUNCHER_STREAM_CHOICE_H_

#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace weft {

// Which of the workers' standard streams are meant: what torchrun's --tee says.
//
//   "3"        both streams of every worker (0 none, 1 stdout, 2 stderr, 3 both)
//   "0:3,1:2"  both of local rank 0, stderr of local rank 1, none of the others
class StreamChoice {
 public:
  // Errors: InvalidArgument for any other text, or a rank that is named twice.
  static StreamChoice Parse(absl::string_view text);

  bool Stdout(int local_rank) const { return (Bits(local_rank) & 1) != 0; }
  bool Stderr(int local_rank) const { return (Bits(local_rank) & 2) != 0; }

  // The largest local rank that is named, -1 if none is.
  int MaxRank() const { return by_rank_.empty() ? -1 : by_rank_.rbegin()->first; }

  bool operator==(const StreamChoice&) const = default;

 private:
  int Bits(int local_rank) const;

  int everywhere_ = 0;
  std::map<int, int> by_rank_;
};

}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_STREAM_CHOICE_H_

// Which method sums a gradient over ranks, as data: "topk(0.01)".

#ifndef WEFT_PARALLEL_COMPRESSION_COMMUNICATION_METHOD_H_
#define WEFT_PARALLEL_COMPRESSION_COMMUNICATION_METHOD_H_

#include <map>
#include <ostream>
#include <string>

#include "absl/strings/string_view.h"

namespace weft {

// A value: copies, compares, prints. Its text is a method's name and its arguments: "int8", "topk(0.01)",
// "powersgd(2, start_step=100, warm_start=false)". "none" is the exact sum.
struct CommunicationMethod {
  std::string name = "none";
  std::map<std::string, double> arguments = {};  // those that are given

  bool is_none() const { return name == "none"; }
  // The argument, or what the method takes for it.
  double Get(absl::string_view argument) const;
  bool GetFlag(absl::string_view argument) const { return Get(argument) != 0; }

  // Blanks are free.
  // Errors: InvalidArgument that names the text: for a name or an argument that there is not, listing those there are;
  //         for a value that the argument does not take, or one that is lacking; what the method's own check says.
  static CommunicationMethod Parse(absl::string_view text);

  // Arguments in the method's order; the first without its name.
  std::string ToString() const;
  bool operator==(const CommunicationMethod&) const = default;
};

std::ostream& operator<<(std::ostream& out, const CommunicationMethod& method);

}  // namespace weft

#endif  // WEFT_PARALLEL_COMPRESSION_COMMUNICATION_METHOD_H_

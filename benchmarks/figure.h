#ifndef WEFT_BENCHMARKS_FIGURE_H_
#define WEFT_BENCHMARKS_FIGURE_H_

#include <functional>
#include <string>
#include <vector>

namespace weft {

// One measured number, beside what it is held against.
struct Figure {
  std::string name = {};  // "dispatch/add/1d"
  double value = 0;
  std::string unit = {};
  double limit = 0;           // what the machine or a peer does, in the same unit; 0: nothing to compare with
  std::string limit_is = {};  // "triad", "llm.c on this machine"
  double target = 0;          // of value / limit; 0: none
  bool less_is_better = false;  // then the ratio must not exceed the target
  double tolerance = 0;         // above 0: the ratio is that far from the target at most, either way
};

// Prints a figure on stdout: with --log_format=text a line to read, with json one object,
//   {"name":...,"value":x,"unit":...,"limit":x,"limit_is":"...","ratio":x,"target":x,"pass":true|false}
// with null for the limit, ratio, target and pass that a figure does not have.
// Errors: InvalidArgument for another --log_format.
void Report(const Figure& figure);

// The median time of one call in nanoseconds: batches of calls, each long enough for the clock, over at least
// `seconds`. `finish` ends a batch, inside its time: for devices that answer before they are done.
double MedianNanoseconds(
    const std::function<void()>& call, double seconds = 0.3, const std::function<void()>& finish = [] {});

// The median of `values`, which must not be empty.
double Median(std::vector<double> values);

}  // namespace weft

#endif  // WEFT_BENCHMARKS_FIGURE_H_

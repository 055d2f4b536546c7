// What the machine under a mesh is capable of, in figures: what choices between layouts and plans go by.

#ifndef WEFT_MESH_MACHINE_H_
#define WEFT_MESH_MACHINE_H_

#include <map>
#include <ostream>
#include <string>

#include "absl/strings/string_view.h"

namespace weft {

// What a message costs along one mesh axis: alpha + beta * bytes.
struct AxisCost {
  double alpha = 5e-6;  // seconds per message
  double beta = 1e-10;  // seconds per byte: 10 GB/s

  double alpha_us() const { return alpha * 1e6; }
  double us_per_byte() const { return beta * 1e6; }

  bool operator==(const AxisCost&) const = default;
};

// A value, given to Bind: propagation, the planner of redistributions and the sizes of gradient buckets read the
// same one. It changes which way is taken, never what is computed; ranks have to agree on it, or they would take
// different ways (Parallelize checks).
//
// The defaults are of no machine in particular. Only ratios matter, and only between the candidates of one choice:
// with the defaults a byte on the wire is worth three in memory, and a multiply-add 0.1 bytes on the wire.
struct Machine {
  std::map<std::string, AxisCost> axes = {};  // by name
  AxisCost other_axes = {};                   // of every axis that `axes` does not name
  double flops = 2e11;                        // floating-point operations per second of one rank
  double bytes_per_second = 3e10;             // of one rank's memory

  // The cost of the axis of that name.
  const AxisCost& Axis(absl::string_view name) const;

  // Errors: InvalidArgument that names the field and its value, unless alpha and beta are finite and at least 0,
  //         flops and bytes_per_second finite and above 0.
  void Check() const;

  // One object; doubles read back as the same bits:
  //   {"axes": {"dp": {"alpha": 1e-05, "beta": 4e-11}}, "other_axes": {"alpha": 5e-06, "beta": 1e-10},
  //    "flops": 2e+11, "bytes_per_second": 3e+10}
  std::string ToJson() const;
  // What is not said keeps its default.
  // Errors: InvalidArgument that names the key and what was expected; as Check.
  static Machine FromJson(absl::string_view json);

  bool operator==(const Machine&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Machine& machine);  // as ToJson

}  // namespace weft

#endif  // WEFT_MESH_MACHINE_H_

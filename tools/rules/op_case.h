#ifndef WEFT_TOOLS_RULES_OP_CASE_H_
#define WEFT_TOOLS_RULES_OP_CASE_H_

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "ops/op/op.h"
#include "ops/sharding/axis_candidates.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// One call of an op that the validator holds the rule to: types and attributes, and what the op says of them.
struct OpCase {
  const OpDef* op = nullptr;
  OpSample sample;  // f32 operands in f64 (where the op takes it), so that rounding hides nothing
  int sample_number = 0;
  bool varied = false;  // extents are the validator's, not the sample's
  TensorTypes types = {};
  TensorTypes output_types = {};
  CallRule call = {};
  std::string rule = {};                 // text of call.rule
  DeviceType device = DeviceType::kCpu;  // where it runs, on one rank and on many

  // "contract(f64[5, 3], f64[3, 7]), rule m k, k n -> m n".
  std::string ToString() const;
};

// A sample as a case.
// Errors: the op's, if it does not take the types; Internal if the rule or the linear groups do not parse
//         against them, or the rule's text does not parse to itself.
OpCase MakeCase(const OpDef& op, const OpSample& sample, int sample_number);

// Every sample of the op, and the calls that follow from it by other extents of the rule's factors, as far as
// the op takes them: uneven (5, 3, 7, ...), even (4, 6, 8, ...), one factor of extent 1, one of extent 0; if
// `exhaustive`, two such factors at once too. Extents that attributes hold (reshape) cannot be varied. Where
// integers of an operand index a factor (their range is its extent), the range follows.
//
// Errors: as MakeCase.
std::vector<OpCase> OpCases(const OpDef& op, bool exhaustive, DeviceType device = DeviceType::kCpu);

// Operands of a case and what one rank computes from them, on its device; all of them on the CPU.
struct CaseValues {
  std::vector<Tensor> operands;
  std::vector<Tensor> outputs = {};
  int planted = -1;            // the operand that special values were planted in
  bool negative_zero = false;  // whether -0.0 is one of them
  std::string name;            // "ordinary", "inf in operand 0"
};

// Values that a case is tried on: two ordinary draws from the sample's ranges; then for each floating operand
// two draws with special values in that operand alone: one with inf and -0.0, one with -inf and nan, an
// element each, so that most of the result stays ordinary. A draw that the kernel refuses is left out, but
// for the first.
// Errors: the kernel's on the first draw.
std::vector<CaseValues> ValuesOf(const OpCase& op_case, uint64_t seed);

}  // namespace weft

#endif  // WEFT_TOOLS_RULES_OP_CASE_H_

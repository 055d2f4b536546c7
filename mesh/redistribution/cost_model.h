#ifndef WEFT_MESH_REDISTRIBUTION_COST_MODEL_H_
#define WEFT_MESH_REDISTRIBUTION_COST_MODEL_H_

#include <cstdint>
#include <vector>

#include "mesh/device_mesh.h"
#include "mesh/machine.h"
#include "mesh/redistribution/bytes.h"
#include "mesh/redistribution/redistribution.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// Predicts times for one mesh on one machine. A value.
//
// A step takes kStepMicroseconds + alpha rounds + beta bytes, with the bytes that its worst rank receives. An
// all-gather or reduce-scatter over n ranks has ceil(log2 n) rounds, an all-reduce twice as many, a move one
// for each peer. Over several axes the slowest one's costs hold for all.
//
// Source: Thakur, Rabenseifner and Gropp (2005): recursive doubling and halving log2(n) alpha + (n-1)/n S
//         beta, all-reduce as reduce-scatter + all-gather, pairwise all-to-all (n-1)(alpha + beta L/n).
class CostModel {
 public:
  // What a step costs besides its messages: packing, and waiting for the last member.
  static constexpr double kStepMicroseconds = 5;

  // Errors: as Machine::Check.
  explicit CostModel(const DeviceMesh& mesh, Machine machine = {});

  const Machine& machine() const { return machine_; }
  const AxisCost& axis(int axis) const { return costs_[axis]; }

  // Microseconds of one step, entered with layout `from`; 0 for steps that do not communicate.
  double StepMicroseconds(const RedistributionStep& step, const Layout& from, const TensorType& type) const;

  // The same from what the worst rank receives; 0 for nothing.
  double Microseconds(const StepTraffic& traffic) const;

  // The sum over the steps.
  double Microseconds(const Redistribution& plan, const TensorType& type) const;

 private:
  DeviceMesh mesh_;
  Machine machine_;
  std::vector<AxisCost> costs_;  // by axis
};

}  // namespace weft

#endif  // WEFT_MESH_REDISTRIBUTION_COST_MODEL_H_

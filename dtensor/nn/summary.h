// A model at a glance: its modules, what they hold, what it costs a rank, and what a forward computes.

#ifndef WEFT_DTENSOR_NN_SUMMARY_H_
#define WEFT_DTENSOR_NN_SUMMARY_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dtensor/nn/module.h"
#include "runtime/tensor/shape.h"

namespace weft {

// A parameter or a buffer of a module.
struct SummaryTensor {
  std::string name;
  Shape shape;
  std::string dtype = "";      // empty before it has a value
  std::string layout = "";     // at rest, "[dp, -]"; likewise
  int64_t bytes_per_rank = 0;  // at rest, of the rank that has most; likewise
  bool is_parameter = true;
  bool trainable = true;

  bool operator==(const SummaryTensor&) const = default;
};

struct SummaryModule {
  std::string path;
  std::string type;                         // of its class: "Linear"
  std::vector<SummaryTensor> tensors = {};  // its own
  // Of calls that its own forward makes, children apart; 0 where nothing is known.
  double flops = 0;

  bool operator==(const SummaryModule&) const = default;
};

// A value.
struct ModelSummary {
  std::vector<SummaryModule> modules;  // in order of registration, the root first

  bool operator==(const ModelSummary&) const = default;

  // Elements of the whole model; of parameters, those that are trained, and buffers.
  int64_t num_parameters() const;
  int64_t num_trainable() const;
  int64_t num_buffer_elements() const;
  int64_t bytes_per_rank() const;
  double flops() const;

  // A line for each module and each of its tensors; totals.
  std::string ToTable() const;
};

// What a model is; before or after it has values. `forward`: if given, it is run, without gradients, and the products,
// convolutions and attention of each module are counted, two floating-point operations for a multiplication and its
// addition, over all ranks together:
//   Summarize(model, [&] { model(x); }).ToTable()
// Of a pipeline each rank sees its stages. Forward changes what forwards change, running statistics but for those under an
// EvaluationGuard, which is in force.
ModelSummary Summarize(Module& model, const std::function<void()>& forward = nullptr);

}  // namespace weft

#endif  // WEFT_DTENSOR_NN_SUMMARY_H_

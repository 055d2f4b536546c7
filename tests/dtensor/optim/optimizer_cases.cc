#include "tests/dtensor/optim/optimizer_cases.h"

#include "dtensor/functions.h"
#include "dtensor/optim/adafactor.h"
#include "dtensor/optim/adamw.h"
#include "dtensor/optim/adamw_8bit.h"
#include "dtensor/optim/lamb.h"
#include "dtensor/optim/lion.h"
#include "dtensor/optim/muon.h"
#include "dtensor/optim/sgd.h"
#include "tests/dtensor/sharded_values.h"

namespace weft {
namespace {

template <class O, class Options>
OptimizerCase CaseOf(std::string name, const Options& options) {
  return {.name = std::move(name), .make = [options](OptimizedModel& model) {
            return std::make_unique<O>(model.AllParameters(), options);
          }};
}

OptimizerCase SeesWhole(OptimizerCase which) {
  which.sees_whole = true;
  return which;
}

std::vector<OptimizerCase> MakeCases() {
  std::vector<OptimizerCase> cases = {
      CaseOf<Sgd>("sgd", SgdOptions{.weight_decay = 0.1}),
      CaseOf<Sgd>("momentum", SgdOptions{.momentum = 0.9, .weight_decay = 0.1}),
      CaseOf<Sgd>("nesterov", SgdOptions{.momentum = 0.9, .nesterov = true, .weight_decay = 0.1}),
      CaseOf<AdamW>("adamw", AdamWOptions{.weight_decay = 0.1}),
      SeesWhole(CaseOf<AdamW8Bit>("adamw_8bit", AdamW8BitOptions{.weight_decay = 0.1, .min_elements = 10})),
      CaseOf<Lion>("lion", LionOptions{.weight_decay = 0.1}),
      SeesWhole(CaseOf<Lamb>("lamb", LambOptions{.weight_decay = 0.1})),
      SeesWhole(CaseOf<Adafactor>("adafactor", AdafactorOptions{.weight_decay = 0.1})),
      SeesWhole(CaseOf<Adafactor>("adafactor_without_decay", AdafactorOptions{.beta2_decay = 0})),
      SeesWhole(CaseOf<Muon>("muon", MuonOptions{.groups = {{.path = "matrix", .matrix = "io"},
                                                            {.path = "qkv", .matrix = "iboo"}}})),
  };
  // Of these one has no moment, and one takes the squares of each step for the mean.
  for (OptimizerCase& which : cases) {
    if (which.name == "sgd" || which.name == "adafactor_without_decay") which.has_state = false;
  }
  return cases;
}

}  // namespace

void OptimizedModel::Lay(const IntrusivePtr<MeshContext>& context, Split split,
                         const ParameterMemory& memory) {
  Bind(context);
  matrix.set_memory(memory);
  vector.set_memory(memory);
  for (Parameter* parameter : parameters()) {
    const int ndim = parameter->spec().shape.ndim();
    const Layout whole(ndim, context->mesh().num_axes());
    Layout pieces = whole;
    for (int axis = 0; axis < context->mesh().num_axes() && split != Split::kNone; ++axis) {
      pieces = pieces.WithShard(axis, split == Split::kLast ? ndim - 1 : 0);
    }
    const Layout& at_rest = split == Split::kStateAlone ? whole : pieces;
    parameter->Materialize(context, DType::kF64, DType::kF64,
                           {.at_rest = at_rest, .compute = at_rest, .gradient = pieces, .state = pieces});
  }
}

void OptimizedModel::SetGradients(int step) {
  uint64_t seed = 100 * static_cast<uint64_t>(step);
  for (Parameter* parameter : parameters()) {
    const Tensor gradient = RandomF64(parameter->spec().shape, seed++);
    parameter->SetGrad(
        DTensor::Distribute(parameter->at_rest().context(), gradient, parameter->layouts().of_gradient()));
  }
}

std::vector<double> OptimizedModel::Values() {
  std::vector<double> values;
  for (const Parameter* parameter : parameters()) {
    const std::vector<double> here = parameter->at_rest().FullTensor().ToVector<double>();
    values.insert(values.end(), here.begin(), here.end());
  }
  return values;
}

const std::vector<OptimizerCase>& OptimizerCases() {
  static const auto* const kCases = new std::vector<OptimizerCase>(MakeCases());
  return *kCases;
}

}  // namespace weft

#ifndef WEFT_TESTS_DTENSOR_OPTIM_OPTIMIZER_CASES_H_
#define WEFT_TESTS_DTENSOR_OPTIM_OPTIMIZER_CASES_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/nn/module.h"
#include "dtensor/optim/optimizer.h"

namespace weft {

// A matrix, a weight [d, 3, h, e], and a vector that does not decay, with first values of their own.
class OptimizedModel : public Module {
 public:
  // Extents of dim 0, uneven over every axis unless said.
  struct Rows {
    int64_t matrix = 5;
    int64_t qkv = 6;
    int64_t vector = 7;
  };
  OptimizedModel() : OptimizedModel(Rows()) {}
  explicit OptimizedModel(const Rows& rows)
      : matrix(this, "matrix", {.shape = {rows.matrix, 3}, .initializer = Initializer::Normal(0, 1)}),
        qkv(this, "qkv", {.shape = {rows.qkv, 3, 2, 2}, .initializer = Initializer::Normal(0, 1)}),
        vector(this, "vector",
               {.shape = {rows.vector}, .initializer = Initializer::Normal(0, 1), .decays = false}) {}

  Parameter matrix, qkv, vector;

  // Over all axes of the mesh along dim 0 (zero1: the state alone), or, if `last`, along the last dim. f64.
  enum class Split { kNone, kFirst, kLast, kStateAlone };
  // `memory`: of the matrix and the vector; the weight's is the device's.
  void Lay(const IntrusivePtr<MeshContext>& context, Split split, const ParameterMemory& memory = {});

  // Random gradients, the same for the same step on every layout.
  void SetGradients(int step);

  // Whole, one parameter after the other.
  std::vector<double> Values();
};

// Every optimizer that there is, with decay.
struct OptimizerCase {
  std::string name;
  std::function<std::unique_ptr<Optimizer>(OptimizedModel& model)> make;
  bool has_state = true;    // besides the count of updates
  bool sees_whole = false;  // its updates go by more than one element
};
const std::vector<OptimizerCase>& OptimizerCases();

}  // namespace weft

#endif  // WEFT_TESTS_DTENSOR_OPTIM_OPTIMIZER_CASES_H_

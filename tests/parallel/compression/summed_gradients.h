// Gradients of chosen values, summed by a method over thread ranks, step after step.

#ifndef WEFT_TESTS_PARALLEL_COMPRESSION_SUMMED_GRADIENTS_H_
#define WEFT_TESTS_PARALLEL_COMPRESSION_SUMMED_GRADIENTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/launch/world.h"
#include "runtime/tensor/shape.h"

namespace weft {

struct SummedGradients {
  std::string method = "bf16";
  int num_ranks = 2;
  std::vector<Shape> shapes = {{1}, {5}, {7, 3}, {257}, {40, 33}, {0}, {6, 2, 9}};
  int64_t steps = 1;
  DType dtype = DType::kF64;
  bool average = false;  // terms of a mean, not of a sum
  // Each rank gets a piece of a sum: leaf i rests split along dim i % ndim, over as many ranks as there are for each of so
  // many replicas.
  bool scatters = false;
  int num_replicas = 1;
  // Element i of a rank's term; by default random, of a scale that differs by parameter.
  std::function<double(int rank, int leaf, int64_t step, int64_t i)> term = nullptr;
  // Within scaled steps, each with its scale, by which terms and sums are larger; which of them are not applied.
  std::function<double(int64_t step)> scale = nullptr;
  std::function<bool(int64_t step)> skips = nullptr;
  // How ranks are started; by default on CPUs.
  std::function<void(int num_ranks, const std::function<void(World&)>& body)> run_ranks = nullptr;
};

struct GradientSums {
  std::vector<std::vector<std::vector<double>>> sums;   // by step, by leaf: what the ranks got
  std::vector<std::vector<std::vector<double>>> exact;  // the same, added up here in f64
  std::map<std::string, std::vector<double>> state;     // by name, whole: all rows, at the end
  std::map<std::string, int64_t> num_bytes;             // of the last step, by the collective's name

  bool operator==(const GradientSums&) const = default;
};

// Fails the test if ranks get different bits, of what they have in common.
GradientSums SumGradients(const SummedGradients& run);

// The residuals of all ranks, added up, by leaf; 0 where a leaf has none.
std::vector<std::vector<double>> ResidualSums(const SummedGradients& run, const GradientSums& sums);

// What of all gradients is neither in the sums nor in the residuals, in units of the leaf's largest exact sum over the
// steps that are applied; the worst leaf's.
double Lost(const SummedGradients& run);

// What the default terms are.
double RandomTerm(int rank, int leaf, int64_t step, int64_t i);

}  // namespace weft

#endif  // WEFT_TESTS_PARALLEL_COMPRESSION_SUMMED_GRADIENTS_H_

// Convolutions as modules.

#ifndef WEFT_DTENSOR_NN_LAYERS_CONVOLUTION_H_
#define WEFT_DTENSOR_NN_LAYERS_CONVOLUTION_H_

#include <array>
#include <optional>
#include <string>

#include "dtensor/nn/module.h"

namespace weft::nn {

struct Conv1dOptions {
  int64_t stride = 1;
  int64_t padding = 0;  // zeros on either side
  int64_t dilation = 1;
  int64_t groups = 1;
  bool bias = true;
  // Not given: uniform within 1 / sqrt(inputs of an output) of 0, PyTorch's. The bias always begins so.
  std::optional<Initializer> weight = std::nullopt;
};

struct Conv2dOptions {
  std::array<int64_t, 2> stride = {1, 1};  // of rows, of columns
  std::array<int64_t, 2> padding = {0, 0};
  std::array<int64_t, 2> dilation = {1, 1};
  int64_t groups = 1;
  bool bias = true;
  std::optional<Initializer> weight = std::nullopt;  // as of Conv1dOptions
};

// The function weft::Conv1d with its weight and bias. ColumnParallel splits outputs, RowParallel input channels (of one
// group); pin the input of what follows a column-parallel one along dim 1.
// Shape:  x [n, in, l] -> [n, out, p]; weight [out, in / groups, kernel], bias [out].
// Errors: InvalidArgument for extents below 1, and groups that do not divide both `in` and `out`.
class Conv1d : public Module {
 public:
  Conv1d(Module* parent, std::string name, int64_t in, int64_t out, int64_t kernel,
         const Conv1dOptions& options = {});

  Parameter weight;
  std::optional<Parameter> bias;

 protected:
  DTensor Forward(const DTensor& x) override;

 private:
  Conv1dOptions options_;
};

// The function weft::Conv2d, likewise.
// Shape:  x [n, in, h, w] -> [n, out, p, q]; weight [out, in / groups, kernel rows, kernel columns], bias [out].
class Conv2d : public Module {
 public:
  Conv2d(Module* parent, std::string name, int64_t in, int64_t out, const std::array<int64_t, 2>& kernel,
         const Conv2dOptions& options = {});
  Conv2d(Module* parent, std::string name, int64_t in, int64_t out, int64_t kernel,
         const Conv2dOptions& options = {})
      : Conv2d(parent, std::move(name), in, out, std::array<int64_t, 2>{kernel, kernel}, options) {}

  Parameter weight;
  std::optional<Parameter> bias;

 protected:
  DTensor Forward(const DTensor& x) override;

 private:
  Conv2dOptions options_;
};

}  // namespace weft::nn

#endif  // WEFT_DTENSOR_NN_LAYERS_CONVOLUTION_H_

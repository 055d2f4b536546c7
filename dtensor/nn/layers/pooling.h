// Pooling as modules: links of a chain without parameters.

#ifndef WEFT_DTENSOR_NN_LAYERS_POOLING_H_
#define WEFT_DTENSOR_NN_LAYERS_POOLING_H_

#include <array>
#include <string>

#include "dtensor/functions/pooling.h"
#include "dtensor/nn/module.h"

namespace weft::nn {

// The functions of the same names (dtensor/functions/pooling.h), with their options.
// Shape: x [n, c, l] -> [n, c, p].
class MaxPool1d : public Module {
 public:
  MaxPool1d(Module* parent, std::string name, const Pool1dOptions& options)
      : Module(parent, std::move(name)), options_(options) {}

 protected:
  DTensor Forward(const DTensor& x) override { return weft::MaxPool1d(x, options_); }

 private:
  Pool1dOptions options_;
};
class AvgPool1d : public Module {
 public:
  AvgPool1d(Module* parent, std::string name, const Pool1dOptions& options)
      : Module(parent, std::move(name)), options_(options) {}

 protected:
  DTensor Forward(const DTensor& x) override { return weft::AvgPool1d(x, options_); }

 private:
  Pool1dOptions options_;
};

// Shape: x [n, c, h, w] -> [n, c, p, q].
class MaxPool2d : public Module {
 public:
  MaxPool2d(Module* parent, std::string name, const Pool2dOptions& options)
      : Module(parent, std::move(name)), options_(options) {}

 protected:
  DTensor Forward(const DTensor& x) override { return weft::MaxPool2d(x, options_); }

 private:
  Pool2dOptions options_;
};
class AvgPool2d : public Module {
 public:
  AvgPool2d(Module* parent, std::string name, const Pool2dOptions& options)
      : Module(parent, std::move(name)), options_(options) {}

 protected:
  DTensor Forward(const DTensor& x) override { return weft::AvgPool2d(x, options_); }

 private:
  Pool2dOptions options_;
};

// Shape: x [n, c, l] -> [n, c, extent].
class AdaptiveAvgPool1d : public Module {
 public:
  AdaptiveAvgPool1d(Module* parent, std::string name, int64_t extent = 1)
      : Module(parent, std::move(name)), extent_(extent) {}

 protected:
  DTensor Forward(const DTensor& x) override { return weft::AdaptiveAvgPool1d(x, extent_); }

 private:
  int64_t extent_;
};
// Shape: x [n, c, h, w] -> [n, c, extents...].
class AdaptiveAvgPool2d : public Module {
 public:
  AdaptiveAvgPool2d(Module* parent, std::string name, const std::array<int64_t, 2>& extents = {1, 1})
      : Module(parent, std::move(name)), extents_(extents) {}

 protected:
  DTensor Forward(const DTensor& x) override { return weft::AdaptiveAvgPool2d(x, extents_); }

 private:
  std::array<int64_t, 2> extents_;
};

}  // namespace weft::nn

#endif  // WEFT_DTENSOR_NN_LAYERS_POOLING_H_

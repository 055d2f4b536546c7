// weft::nn: every module under the name that users of PyTorch know. Those whose name a function of weft has (Conv2d, Dropout,
// Flatten, MaxPool2d, ...) are here alone.

#ifndef WEFT_DTENSOR_NN_LAYERS_LAYERS_H_
#define WEFT_DTENSOR_NN_LAYERS_LAYERS_H_

#include "dtensor/nn/attention.h"
#include "dtensor/nn/containers.h"
#include "dtensor/nn/embedding.h"
#include "dtensor/nn/layers/channel_norm.h"
#include "dtensor/nn/layers/convolution.h"
#include "dtensor/nn/layers/pointwise.h"
#include "dtensor/nn/layers/pooling.h"
#include "dtensor/nn/linear.h"
#include "dtensor/nn/module.h"
#include "dtensor/nn/norm.h"

namespace weft::nn {

using weft::BatchNorm;
using weft::BatchNorm1d;
using weft::BatchNorm2d;
using Buffer = weft::ModuleBuffer;
using weft::CausalSelfAttention;
using weft::Embedding;
using weft::GroupNorm;
using weft::Lambda;
using weft::LayerNorm;
using weft::Linear;
using weft::Module;
using weft::ModuleDict;
using weft::ModuleList;
using weft::Parameter;
using weft::RmsNorm;
using weft::Sequential;

}  // namespace weft::nn

#endif  // WEFT_DTENSOR_NN_LAYERS_LAYERS_H_

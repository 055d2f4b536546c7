#ifndef WEFT_WEFT_H_
#define WEFT_WEFT_H_

// All of Weft for users: tensors over meshes, modules, optimizers, plans, and what declaring an op takes.
// Link //:weft.

#include "dtensor/autograd.h"
#include "dtensor/checkpoint/checkpoint.h"
#include "dtensor/comm_report.h"
#include "dtensor/dispatch.h"
#include "dtensor/dtensor.h"
#include "dtensor/functions.h"
#include "dtensor/mesh_context.h"
#include "dtensor/nn/attention.h"
#include "dtensor/nn/embedding.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/nn/linear.h"
#include "dtensor/nn/mlp.h"
#include "dtensor/nn/module.h"
#include "dtensor/nn/norm.h"
#include "dtensor/optim/clip.h"
#include "dtensor/optim/optimizer.h"
#include "dtensor/optim/schedule.h"
#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "ops/elementwise.h"
#include "ops/kernel.h"
#include "ops/op.h"
#include "ops/reduce.h"
#include "ops/sharding_rule.h"
#include "parallel/parallelize.h"
#include "parallel/plan.h"
#include "parallel/style.h"
#include "parallel/trainer.h"
#include "runtime/base/error.h"
#include "runtime/base/flags.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "runtime/tensor/tensor.h"

#endif  // WEFT_WEFT_H_

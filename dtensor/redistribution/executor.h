#ifndef WEFT_DTENSOR_REDISTRIBUTION_EXECUTOR_H_
#define WEFT_DTENSOR_REDISTRIBUTION_EXECUTOR_H_

#include <memory>

#include "dtensor/context/mesh_context.h"
#include "mesh/redistribution/lowering.h"
#include "runtime/comm/communicator.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// Runs the steps on this rank's piece, writing straight into the final layout: messages are packed only where
// a part of a piece does not lie in one run. Where nothing moves the result is a view of `local`; it never
// keeps a larger buffer of an earlier step alive. Collectives are written to the ledger under the rank
// state's purpose and path, with as many bytes as StepBytes says.
//
// Threads: every rank of the mesh calls it alike.
Tensor RunRedistribution(MeshContext& context, const Tensor& local, const LoweredRedistribution& lowered);

// Runs one rank's part in a region exchange: sends and keeps parts of `input`, receives into `output`. Either
// may be undefined where the exchange does not touch it. Point to point: only ranks that have something for
// each other meet.
// Threads: every member of the group calls it alike.
void ExchangeRegions(Communicator& group, const Tensor& input, const Tensor& output,
                     const LoweredExchange& exchange, const std::shared_ptr<Allocator>& allocator,
                     const CommOptions& options);

}  // namespace weft

#endif  // WEFT_DTENSOR_REDISTRIBUTION_EXECUTOR_H_

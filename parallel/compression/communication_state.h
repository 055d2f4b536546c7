// What a model's communication methods keep between steps, to be saved and loaded: residuals, velocities, bases.

#ifndef WEFT_PARALLEL_COMPRESSION_COMMUNICATION_STATE_H_
#define WEFT_PARALLEL_COMPRESSION_COMMUNICATION_STATE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/checkpoint/state/state.h"
#include "dtensor/checkpoint/tensor_source.h"
#include "dtensor/dtensor.h"
#include "dtensor/nn/module.h"

namespace weft {

// Whether any of the model's gradients is compressed on these ranks: its plan says so, and several ranks sum them.
bool HasCompression(Module& model);

// A step whose loss is scaled (dtensor/optim/loss_scale.h) is between these: gradients are encoded without the scale, so
// that what is kept is in the gradient's own units, and a step that is not `applied`, since something overflowed, leaves
// it as it was before. A Trainer calls both, with a scale of 1 around a step that it will skip; by hand:
//   BeginScaledStep(model, scale.value().Item());
//   Backward(loss, scale.Seed(loss));
//   const GlobalNorm norm = ComputeGlobalNorm(parameters, max_norm, scale.value());
//   optimizer.Step(lr, norm.scale);
//   EndScaledStep(model, std::isfinite(norm.norm_squared.Item()));
// Nothing, where nothing is compressed.
// Cost:   a copy of what is kept, which stays allocated.
// Errors: InvalidArgument for a scale that is not above 0 and finite.
void BeginScaledStep(Module& model, double scale);
void EndScaledStep(Module& model, bool applied);

// For SaveTensors, behind CheckpointTensors: "communication.round", and of each compressed parameter
// "communication.PATH.NAME", of what replicas sum "communication.PATH.replicas.NAME". Empty, if nothing is compressed. A
// residual is saved of every rank of its group: [ranks, shape of the parameter].
// Within a scaled step, also one that has thrown, it is what was kept before that.
// Cost:   waits for sums that are under way.
// Errors: FailedPrecondition within a backward pass; those of the sums, once.
std::vector<std::pair<std::string, DTensor>> CommunicationState(Module& model);

// Reads it, in place. On the mesh that saved it training goes on with the same bits. On another rank r of n takes the sum of
// the saved rows r, r + n, r + 2n, ...: what has not been sent yet is the sum over the rows, in units of the gradient of
// the whole batch, so that none of it is lost or counted twice, whatever n. What all ranks have alike (powersgd's bases)
// is read where the parameter is split into as many parts; otherwise it begins anew. State that the file lacks is 0: the
// run that wrote it compressed nothing, or by another method. A scaled step that has not ended, as one that has thrown, is not
// applied, and over.
// Errors: InvalidArgument for another dtype, or another shape of the parameter: nothing is loaded then.
void LoadCommunicationState(TensorSource& reader, Module& model);

// Both, as a part of a run's state (dtensor/checkpoint/state/state.h). It views the model.
std::shared_ptr<StatePart> MakeCommunicationState(Module& model);

}  // namespace weft

#endif  // WEFT_PARALLEL_COMPRESSION_COMMUNICATION_STATE_H_

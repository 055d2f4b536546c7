// What of a model lies in the ranks' second memory, so that their devices have room.

#ifndef WEFT_PARALLEL_STYLES_OFFLOAD_H_
#define WEFT_PARALLEL_STYLES_OFFLOAD_H_

#include <optional>

#include "parallel/style.h"

namespace weft {

struct OffloadOptions {
  // The optimizer's state and gradients at rest. Gradients go there during backward, a bucket at a time; the update is
  // the CPU's.
  std::optional<bool> state = std::nullopt;
  // Parameters at rest, and with them `state`. Compute reads a copy, brought to the device ahead of its use where
  // FullyShard gathers it.
  std::optional<bool> parameters = std::nullopt;
  // What backward reads of the modules' calls, from forward until then; false: stays on the device, below modules of which
  // it goes, too. Of modules that are recomputed: what they were given, and the results that Recompute keeps by op.
  std::optional<bool> activations = std::nullopt;
};

// What is said of lies in the second memory of each rank (World::host_allocator): pinned memory of the host beside a GPU,
// memory in a file beside the CPU's, for models that are larger than memory (DeviceOptions::offload_folder). Results are
// the same, but for what the CPU's kernels round otherwise than a GPU's.
//
//   {"", Offload({.state = true})}, {"blocks.*", Offload({.activations = true})}
//
// Later entries on a module override field by field.
// Memory: on the device, of a parameter's elements: with `state` less by gradient and moments (AdamW in f32: 12 bytes of
//         16 an element), with `parameters` all of it but the copies that are in use.
// Cost:   per step and element, over the link to the second memory: of `state` the gradient, and on a GPU the value in
//         both directions; of `parameters` the gradient, and the value at each use. Of activations once in each direction.
// Source: Ren et al., "ZeRO-Offload: democratizing billion-scale model training", 2021; the semantics of
//         torch.distributed.fsdp.CPUOffloadPolicy and torch.autograd.graph.save_on_cpu.
Style Offload(const OffloadOptions& options);

}  // namespace weft

#endif  // WEFT_PARALLEL_STYLES_OFFLOAD_H_

// Data parallelism whose parameters rest split: ZeRO-3, FSDP.

#ifndef WEFT_PARALLEL_STYLES_FULLY_SHARD_H_
#define WEFT_PARALLEL_STYLES_FULLY_SHARD_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "parallel/style.h"

namespace weft {

struct FullyShardOptions {
  std::optional<Placement> input = std::nullopt;
  std::optional<Placement> output = std::nullopt;
  Reshard reshard = Reshard::kAlways;
  // A unit keeps a part of what it gathered between forward and backward: the axis falls into groups of so many
  // neighbours (those of a node, say), each of which has the whole and gathers it by itself. A divisor of the axis's
  // size, above 1 and below it; not with Reshard::kNever, nor in a plan with Pipeline. The root's unit stays whole in any case.
  std::optional<int64_t> reshard_to = std::nullopt;
  // Below the entry's modules, each of this type ("Block", the class's name without its namespace) is a unit of its
  // own. Not with wrap_from.
  std::optional<std::string> wrap = std::nullopt;
  // Below the entry's modules, each of so many elements or more whose children each have fewer is a unit of its own;
  // none is if not given.
  std::optional<int64_t> wrap_from = std::nullopt;
  std::optional<int> dim = std::nullopt;  // -1: the last, which every parameter has
};

// DataParallel whose parameters, gradients and optimizer state rest split, gathered for compute (ZeRO-3,
// FSDP). Marks a unit: it takes every parameter of the module that no inner unit of the same axis takes.
//
// Layout: each parameter is split over `dim`. If that is not given: over its first dim that divides what the
//         plan's other entries leave of it. A dim that another axis splits is taken only if no other divides; the
//         largest if none does. A scalar stays whole.
Style FullyShard(absl::string_view axis, const FullyShardOptions& options = {});

}  // namespace weft

#endif  // WEFT_PARALLEL_STYLES_FULLY_SHARD_H_

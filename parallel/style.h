#ifndef WEFT_PARALLEL_STYLE_H_
#define WEFT_PARALLEL_STYLE_H_

#include <optional>
#include <ostream>
#include <string>

#include "absl/strings/string_view.h"
#include "mesh/placement.h"

namespace weft {

// Whether a unit of FullyShard gives its gathered parameters up between its uses in one step.
enum class Reshard : uint8_t {
  kAlways,  // after forward and after backward: the least memory
  kNever,   // gathered once per step, kept until the update
};

// What one mesh axis does to one module: data, with the names that users of PyTorch know. Build with the
// functions below.
struct Style {
  enum class Kind : uint8_t {
    kColumnParallel,
    kRowParallel,
    kVocabParallel,
    kSequenceParallel,
    kDataParallel,
    kFullyShard,
  };
  Kind kind = Kind::kDataParallel;
  std::string axis;
  // Along `axis`: where the module's input must lie, and its output; the style's own rule if not given.
  std::optional<Placement> input = std::nullopt;
  std::optional<Placement> output = std::nullopt;
  // Of FullyShard: which dim of each parameter the axis splits, from the end if negative; the style's own
  // rule if not given.
  std::optional<int> dim = std::nullopt;
  bool shard_state = false;            // of DataParallel
  bool shard_gradient = false;         // of DataParallel
  Reshard reshard = Reshard::kAlways;  // of FullyShard
  int64_t wrap_from = 0;               // of FullyShard

  bool operator==(const Style&) const = default;
  // "ColumnParallel(tp)", "RowParallel(tp, output=Shard(1))", "FullyShard(dp, dim=1)".
  std::string ToString() const;
};

struct StyleBorders {
  std::optional<Placement> input = std::nullopt;
  std::optional<Placement> output = std::nullopt;
};

// Splits the module's column dims (output features, heads) over the axis. Input: Replicate, gathered if it
// comes sharded (its gradient goes back as it came); output: as the split product leaves it, sharded on the
// features.
// Source: Shoeybi et al., "Megatron-LM", 2019, the operator f.
Style ColumnParallel(absl::string_view axis, const StyleBorders& borders = {});

// Splits the module's row dims (the contracted input features). Output: summed to Replicate (an all-reduce),
// or to Shard(1) (a reduce-scatter) under sequence parallelism; its gradient is Replicate. A bias stays whole
// and is added once.
// Source: the same, the operator g.
Style RowParallel(absl::string_view axis, const StyleBorders& borders = {});

// Splits an embedding's vocabulary: each rank looks up its own rows and the results are summed. Output as
// RowParallel's.
Style VocabParallel(absl::string_view axis, const StyleBorders& borders = {});

// Runs the module (a norm) on activations that are split over the sequence, dim 1. Its parameters stay whole;
// their gradients are summed over the axis.
// Source: Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022.
Style SequenceParallel(absl::string_view axis, const StyleBorders& borders = {});

struct DataParallelOptions {
  std::optional<Placement> input = std::nullopt;
  std::optional<Placement> output = std::nullopt;
  bool shard_state = false;  // ZeRO-1: gradients at rest and optimizer state lie split
  bool shard_gradient =
      false;  // ZeRO-2: gradients are reduced with each microbatch, too; implies shard_state
};

// Splits the module's input over the batch, dim 0; parameters are whole, their gradients summed (DDP). With
// options, what a step keeps beside the parameters lies split, over the dim that FullyShard would choose. A
// parameter belongs to the innermost entry of the axis.
// Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020.
Style DataParallel(absl::string_view axis, const DataParallelOptions& options = {});

struct FullyShardOptions {
  std::optional<Placement> input = std::nullopt;
  std::optional<Placement> output = std::nullopt;
  Reshard reshard = Reshard::kAlways;
  // Below the entry's modules, each of so many elements or more whose children each have fewer is a unit of its
  // own; 0: none is.
  int64_t wrap_from = 0;
  std::optional<int> dim = std::nullopt;  // -1: the last, which every parameter has
};

// DataParallel whose parameters, gradients and optimizer state rest split, gathered for compute (ZeRO-3,
// FSDP). Marks a unit: it takes every parameter of the module that no inner unit of the same axis takes.
//
// Layout: each parameter is split over `dim`. If that is not given: over its first dim that divides what the
//         plan's other entries leave of it. A dim that another axis splits is taken only if no other divides; the
//         largest if none does. A scalar stays whole.
Style FullyShard(absl::string_view axis, const FullyShardOptions& options = {});

// "ColumnParallel", ...
absl::string_view StyleKindName(Style::Kind kind);
// Errors: InvalidArgument that lists the names.
Style::Kind ParseStyleKind(absl::string_view name);

std::ostream& operator<<(std::ostream& out, const Style& style);

}  // namespace weft

#endif  // WEFT_PARALLEL_STYLE_H_

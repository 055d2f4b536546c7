#include "tests/ops/check_strategies.h"

#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "ops/propagate.h"
#include "runtime/base/error.h"
#include "runtime/tensor/copy.h"
#include "tests/ops/sample_tensors.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using Coordinate = std::vector<int64_t>;

std::vector<Coordinate> Coordinates(const DeviceMesh& mesh) {
  std::vector<Coordinate> all = {{}};
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    std::vector<Coordinate> longer;
    for (const Coordinate& coordinate : all) {
      for (int64_t i = 0; i < mesh.axis_size(axis); ++i) {
        longer.push_back(coordinate);
        longer.back().push_back(i);
      }
    }
    all = longer;
  }
  return all;
}

Tensor PieceOf(const Tensor& whole, const ShardBox& box) {
  Tensor piece = whole;
  for (int dim = 0; dim < whole.ndim(); ++dim) piece = piece.Slice(dim, box.offset[dim], box.shape[dim]);
  return piece;
}

// The place of a coordinate among those that differ along Partial axes, row-major; 0 if there are none.
int64_t TermOf(const Layout& layout, const DeviceMesh& mesh, const Coordinate& coordinate) {
  int64_t term = 0;
  for (int axis : layout.PartialAxes()) term = term * mesh.axis_size(axis) + coordinate[axis];
  return term;
}

// What the ranks hold of `value`, by rank.
std::vector<Piece> Lay(const Tensor& value, const Layout& layout, const DeviceMesh& mesh,
                       std::mt19937_64& random) {
  int64_t num_terms = 1;
  double scale = 1;
  for (int axis : layout.PartialAxes()) {
    num_terms *= mesh.axis_size(axis);
    if (layout.partial_op(axis) == ReduceOp::kAvg) scale *= static_cast<double>(mesh.axis_size(axis));
  }
  std::vector<Tensor> terms;
  std::vector<double> rest = value.ToVector<double>();
  for (double& element : rest) element *= scale;
  for (int64_t i = 0; i < num_terms; ++i) {
    std::vector<double> term = rest;
    if (i + 1 < num_terms)
      term = RandomTensor({{DType::kF64, value.shape()}, -3, 4}, random).ToVector<double>();
    for (size_t j = 0; j < rest.size(); ++j) rest[j] -= term[j];
    terms.push_back(
        CastTensor(Tensor::FromValues<double>(value.shape(), term), value.dtype(), MakeCpuAllocator()));
  }
  std::vector<Piece> pieces;
  for (const Coordinate& coordinate : Coordinates(mesh)) {
    const ShardBox box = LocalBox(value.shape(), layout, mesh, coordinate);
    const Tensor& term = terms[TermOf(layout, mesh, coordinate)];
    pieces.push_back({CloneTensor(PieceOf(term, box), MakeCpuAllocator()), box});
  }
  return pieces;
}

double Identity(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMax:
      return -std::numeric_limits<double>::infinity();
    case ReduceOp::kMin:
      return std::numeric_limits<double>::infinity();
    case ReduceOp::kProduct:
      return 1;
    default:
      return 0;
  }
}

// The value that pieces in `layout` denote; ranks that differ along Replicate axes only must agree bit by
// bit.
Tensor Denoted(const std::vector<Tensor>& pieces, const Tensor& like, const Layout& layout,
               const DeviceMesh& mesh) {
  double scale = 1;
  ReduceOp op = ReduceOp::kSum;
  for (int axis : layout.PartialAxes()) {
    if (layout.partial_op(axis) == ReduceOp::kAvg) {
      scale /= static_cast<double>(mesh.axis_size(axis));
    } else {
      op = layout.partial_op(axis);
    }
  }
  const Tensor result = CloneTensor(like, MakeCpuAllocator());
  FillTensor(result, Identity(op));
  const std::vector<Coordinate> coordinates = Coordinates(mesh);
  for (size_t rank = 0; rank < coordinates.size(); ++rank) {
    size_t first = 0;  // the rank at the beginning of every Replicate axis
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      first = first * mesh.axis_size(axis) + (layout.IsReplicate(axis) ? 0 : coordinates[rank][axis]);
    }
    if (first != rank) {
      EXPECT_TRUE(SameBits(pieces[rank], pieces[first])) << "replicas differ";
      continue;
    }
    std::vector<double> values = pieces[rank].ToVector<double>();
    for (double& value : values) value *= scale;
    const ShardBox box = LocalBox(like.shape(), layout, mesh, coordinates[rank]);
    const Tensor term = Tensor::FromValues<double>(box.shape, values);
    AccumulateTensor(CastTensor(term, like.dtype(), MakeCpuAllocator()), PieceOf(result, box), op);
  }
  return result;
}

Layout RandomLayout(const TensorType& type, const DeviceMesh& mesh, std::mt19937_64& random) {
  std::vector<AxisPlacement> placements;
  const ReduceOp other = random() % 4 == 0   ? ReduceOp::kMax
                         : random() % 4 == 0 ? ReduceOp::kAvg
                                             : ReduceOp::kSum;
  std::vector<int> axes(mesh.num_axes());
  for (int axis = 0; axis < mesh.num_axes(); ++axis) axes[axis] = axis;
  for (size_t i = axes.size(); i > 1; --i) std::swap(axes[i - 1], axes[random() % i]);
  for (int axis : axes) {
    const uint64_t kind = random() % 4;
    if (kind <= 1 && type.ndim() > 0) {
      placements.push_back({mesh.axis_name(axis), Shard(static_cast<int>(random() % type.ndim()))});
    } else if (kind == 2 && IsFloating(type.dtype)) {
      placements.push_back({mesh.axis_name(axis), Partial(other)});
    }
  }
  return Layout(mesh, type.ndim(), placements);
}

void Count(const Strategy& strategy, StrategyCounts& counts) {
  ++counts.run;
  for (const Layout& layout : strategy.outputs) {
    counts.partial += layout.HasPartial() ? 1 : 0;
    counts.split += !layout.HasPartial() && !layout.IsFullyReplicated() ? 1 : 0;
  }
}

void RunOnce(const OpDef& op, const OpSample& sample, const DeviceMesh& mesh, std::mt19937_64& random,
             StrategyCounts& counts) {
  const void* attributes = sample.attributes.get();
  const void* scalars = sample.scalars.get();
  TensorTypes types;
  std::vector<Layout> layouts;
  for (const SampleOperand& operand : sample.operands) {
    types.push_back(operand.type);
    layouts.push_back(RandomLayout(operand.type, mesh, random));
  }
  const TensorTypes output_types = op.Infer(types, attributes);
  const Layout like = RandomLayout(output_types[0], mesh, random);
  Strategy strategy;
  try {
    strategy = Propagate({.op = &op,
                          .attributes = attributes,
                          .operand_types = types,
                          .operand_layouts = layouts,
                          .output_types = output_types,
                          .like = random() % 2 == 0 ? &like : nullptr},
                         mesh, CostModel(mesh));
  } catch (const Error& error) {
    EXPECT_STRNE(op.in_place(), "") << error.message();
    ++counts.refused;
    return;
  }
  if (strategy.lowered) {
    ++counts.lowered;
    return;
  }
  Count(strategy, counts);

  const std::vector<Tensor> operands = RandomOperands(sample, random);
  const std::vector<Tensor> expected = RunErased(op, CopyTensors(operands), attributes, scalars);
  std::vector<std::vector<Piece>> laid;
  for (size_t i = 0; i < operands.size(); ++i)
    laid.push_back(Lay(operands[i], strategy.operands[i], mesh, random));
  std::vector<std::vector<Tensor>> outputs(expected.size());
  const std::vector<Coordinate> coordinates = Coordinates(mesh);
  for (size_t rank = 0; rank < coordinates.size(); ++rank) {
    std::vector<Piece> pieces;
    for (const std::vector<Piece>& operand : laid) pieces.push_back(operand[rank]);
    std::vector<ShardBox> boxes;
    for (size_t i = 0; i < expected.size(); ++i) {
      boxes.push_back(LocalBox(expected[i].shape(), strategy.outputs[i], mesh, coordinates[rank]));
    }
    const std::vector<Tensor> local = SingleDevice().RunPieces(op, pieces, boxes, attributes, scalars);
    for (size_t i = 0; i < local.size(); ++i) outputs[i].push_back(local[i]);
  }
  std::string text = absl::StrCat(CallText(op, sample), " on ", mesh.ToString());
  for (const Layout& layout : layouts) absl::StrAppend(&text, " ", layout.ToString(mesh));
  for (const Layout& layout : strategy.operands) absl::StrAppend(&text, " -> ", layout.ToString(mesh));
  for (size_t i = 0; i < expected.size(); ++i) {
    const Tensor denoted = Denoted(outputs[i], expected[i], strategy.outputs[i], mesh);
    // Every term of a Partial rounds once more.
    const double tolerance = Tolerance(expected[i].dtype()) * static_cast<double>(mesh.num_ranks());
    EXPECT_TRUE(AllClose(denoted, expected[i], tolerance)) << text << ", output " << i;
  }
}

}  // namespace

StrategyCounts CheckStrategies(const OpDef& op, const OpSample& f32_sample, int rounds) {
  const OpSample sample = InF64(f32_sample);
  std::mt19937_64 random(7);
  StrategyCounts counts;
  for (absl::string_view text : {"a=2", "a=3,b=2", "a=2,b=1,c=3", "a=2,b=2,c=2"}) {
    const DeviceMesh mesh = DeviceMesh::Parse(text);
    for (int i = 0; i < rounds; ++i) RunOnce(op, sample, mesh, random, counts);
  }
  return counts;
}

}  // namespace weft

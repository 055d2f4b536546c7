#include "tests/ops/check_rule.h"

#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/sharding_rule.h"
#include "runtime/tensor/copy.h"
#include "tests/ops/sample_tensors.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using ::testing::AssertionFailure;
using ::testing::AssertionResult;
using ::testing::AssertionSuccess;

// One call of an op with its whole result, and what its rule says.
struct Case {
  const OpDef& op;
  const OpSample sample;
  ShardingRule rule;
  std::vector<Tensor> operands;
  std::vector<Tensor> outputs;

  std::vector<Tensor> RunPieces(absl::Span<const Piece> pieces, absl::Span<const ShardBox> boxes) const {
    return SingleDevice().RunPieces(op, pieces, boxes, sample.attributes.get(), sample.scalars.get());
  }
};

// The dim that carries `factor`, or -1.
int DimOf(const std::vector<int>& dims, int factor) {
  const auto found = absl::c_find(dims, factor);
  return found == dims.end() ? -1 : static_cast<int>(found - dims.begin());
}

bool HasFactor(const std::vector<std::vector<int>>& values, int factor) {
  return absl::c_any_of(values, [&](const std::vector<int>& dims) { return DimOf(dims, factor) >= 0; });
}

Piece CopyOf(const Tensor& tensor) { return WholePiece(CloneTensor(tensor, MakeCpuAllocator())); }

// `count` tensors that add up to `whole`, of changing signs and no symmetry.
std::vector<Tensor> Terms(const Tensor& whole, int count, std::mt19937_64& random) {
  std::vector<Tensor> terms;
  const std::vector<double> values = whole.ToVector<double>();
  std::vector<double> rest = values;
  for (int i = 0; i < count; ++i) {
    std::vector<double> term = rest;
    if (i + 1 < count) {
      const SampleOperand like = {{whole.dtype(), whole.shape()}, -3, 4};
      term = RandomTensor(like, random).ToVector<double>();
    }
    for (size_t j = 0; j < rest.size(); ++j) rest[j] -= term[j];
    terms.push_back(
        CastTensor(Tensor::FromValues<double>(whole.shape(), term), whole.dtype(), MakeCpuAllocator()));
  }
  return terms;
}

// Operands that a reduced split of `factor` would add once a piece: they lack it, and are summed with one
// that has it.
std::vector<bool> AdditiveOperands(const Case& c, int factor) {
  std::vector<bool> additive(c.operands.size(), false);
  const bool reduced =
      absl::c_any_of(c.rule.outputs, [&](const std::vector<int>& dims) { return DimOf(dims, factor) < 0; });
  if (!reduced) return additive;
  for (const std::vector<int>& group : c.op.LinearGroups(static_cast<int>(c.operands.size()))) {
    const auto has = [&](int operand) { return DimOf(c.rule.operands[operand], factor) >= 0; };
    if (absl::c_none_of(group, has)) continue;
    for (int operand : group) additive[operand] = additive[operand] || !has(operand);
  }
  return additive;
}

// How the outputs of pieces become one result again.
class Assembly {
 public:
  // Outputs of extent `shape` are concatenated along `dim` if it is >= 0, else combined by `op`.
  Assembly(const Tensor& like, int dim, ReduceOp op)
      : dim_(dim), op_(op), result_(CloneTensor(like, MakeCpuAllocator())) {
    FillTensor(result_, 77);  // a piece that nobody delivers must show
  }

  void Add(const Tensor& piece, Range range) {
    if (dim_ >= 0) {
      CopyTensor(piece, result_.Slice(dim_, range.offset, range.size));
    } else if (first_) {
      CopyTensor(piece, result_);
    } else {
      AccumulateTensor(piece, result_, op_);
    }
    first_ = false;
  }
  const Tensor& result() const { return result_; }

 private:
  int dim_;
  ReduceOp op_;
  bool first_ = true;
  Tensor result_;
};

AssertionResult CheckFactor(const Case& c, int factor, int num_pieces, std::mt19937_64& random) {
  const bool in_operands = HasFactor(c.rule.operands, factor);
  const std::vector<bool> additive = AdditiveOperands(c, factor);
  std::vector<std::vector<Tensor>> terms(c.operands.size());
  for (size_t i = 0; i < c.operands.size(); ++i) {
    if (additive[i]) terms[i] = Terms(c.operands[i], num_pieces, random);
  }
  std::vector<Assembly> assemblies;
  for (size_t i = 0; i < c.outputs.size(); ++i) {
    assemblies.emplace_back(c.outputs[i], DimOf(c.rule.outputs[i], factor), c.rule.reductions[i]);
  }
  for (int p = 0; p < num_pieces; ++p) {
    const Range range = ChunkOf({0, c.rule.factors[factor].size}, num_pieces, p);
    std::vector<Piece> pieces;
    for (size_t i = 0; i < c.operands.size(); ++i) {
      const int dim = DimOf(c.rule.operands[i], factor);
      pieces.push_back(dim >= 0      ? SplitPiece(c.operands[i], dim, range)
                       : additive[i] ? CopyOf(terms[i][p])
                                     : CopyOf(c.operands[i]));
    }
    std::vector<ShardBox> boxes;
    for (size_t i = 0; i < c.outputs.size(); ++i) {
      const int dim = DimOf(c.rule.outputs[i], factor);
      const Shape& shape = c.outputs[i].shape();
      boxes.push_back(dim >= 0 ? SplitBox(shape, dim, range) : WholeBox(shape));
    }
    const std::vector<Tensor> outputs = c.RunPieces(pieces, boxes);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const bool repeated = !in_operands && DimOf(c.rule.outputs[i], factor) < 0;
      if (!repeated || p == 0) {
        assemblies[i].Add(outputs[i], range);
      } else if (AssertionResult same = SameBits(outputs[i], assemblies[i].result()); !same) {
        return same << " (output " << i << " is computed by every piece)";
      }
    }
  }
  for (size_t i = 0; i < c.outputs.size(); ++i) {
    AssertionResult close = AllClose(assemblies[i].result(), c.outputs[i], Tolerance(c.outputs[i].dtype()));
    if (!close) return close << " (output " << i << ")";
  }
  return AssertionSuccess();
}

AssertionResult CheckGroup(const Case& c, const std::vector<int>& group, int num_terms,
                           std::mt19937_64& random) {
  std::vector<std::vector<Tensor>> terms(c.operands.size());
  for (int operand : group) terms[operand] = Terms(c.operands[operand], num_terms, random);
  std::vector<ShardBox> boxes;
  std::vector<Assembly> assemblies;
  for (const Tensor& output : c.outputs) {
    boxes.push_back(WholeBox(output.shape()));
    assemblies.emplace_back(output, /*dim=*/-1, ReduceOp::kSum);
  }
  for (int t = 0; t < num_terms; ++t) {
    std::vector<Piece> pieces;
    for (size_t i = 0; i < c.operands.size(); ++i) {
      pieces.push_back(CopyOf(terms[i].empty() ? c.operands[i] : terms[i][t]));
    }
    const std::vector<Tensor> outputs = c.RunPieces(pieces, boxes);
    for (size_t i = 0; i < outputs.size(); ++i) assemblies[i].Add(outputs[i], {});
  }
  for (size_t i = 0; i < c.outputs.size(); ++i) {
    AssertionResult close = AllClose(assemblies[i].result(), c.outputs[i], Tolerance(c.outputs[i].dtype()));
    if (!close) return close << " (output " << i << ")";
  }
  return AssertionSuccess();
}

AssertionResult CheckLowering(const Case& c) {
  const std::vector<Tensor> lowered =
      RunLoweredErased(c.op, c.operands, c.sample.attributes.get(), c.sample.scalars.get());
  if (lowered.size() != c.outputs.size()) {
    return AssertionFailure() << "the lowering has " << lowered.size() << " outputs, the op "
                              << c.outputs.size();
  }
  for (size_t i = 0; i < lowered.size(); ++i) {
    AssertionResult close = AllClose(lowered[i], c.outputs[i], Tolerance(c.outputs[i].dtype()));
    if (!close) return close << " (output " << i << " of the lowering)";
  }
  return AssertionSuccess();
}

}  // namespace

AssertionResult CheckRule(const OpDef& op, const OpSample& f32_sample) {
  const OpSample sample = InF64(f32_sample);
  const std::string call = CallText(op, sample);
  TensorTypes types;
  for (const SampleOperand& operand : sample.operands) types.push_back(operand.type);
  const TensorTypes output_types = op.Infer(types, sample.attributes.get());
  const ShardingRule rule = ShardingRule::Parse(op.Rule(types, sample.attributes.get()), types, output_types);
  const std::string text = rule.ToString();
  if (ShardingRule::Parse(text, types, output_types) != rule) {
    return AssertionFailure() << call << ": '" << text << "' does not parse to itself";
  }

  std::mt19937_64 random(20240611);
  const std::vector<Tensor> operands = RandomOperands(sample, random);
  const std::vector<Tensor> outputs =
      RunErased(op, CopyTensors(operands), sample.attributes.get(), sample.scalars.get());
  const Case c = {op, sample, rule, operands, outputs};
  for (size_t factor = 0; factor < rule.factors.size(); ++factor) {
    if (rule.factors[factor].whole) continue;
    for (int num_pieces : {2, 3}) {
      AssertionResult result = CheckFactor(c, static_cast<int>(factor), num_pieces, random);
      if (!result) {
        return result << "\n"
                      << call << ", rule " << text << ", splitting " << rule.factors[factor].name << " over "
                      << num_pieces;
      }
    }
  }
  for (const std::vector<int>& group : op.LinearGroups(static_cast<int>(operands.size()))) {
    for (int num_terms : {2, 3}) {
      AssertionResult result = CheckGroup(c, group, num_terms, random);
      if (!result) {
        return result << "\n"
                      << call << ", linear " << op.linear() << ", " << num_terms << " terms of operands "
                      << absl::StrJoin(group, ", ");
      }
    }
  }
  if (op.has_lowering()) {
    if (AssertionResult result = CheckLowering(c); !result) return result << "\n" << call;
  }
  return AssertionSuccess();
}

}  // namespace weft

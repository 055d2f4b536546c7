#include "tools/rules/op_case.h"

#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/error.h"
#include "runtime/device/device_backend.h"
#include "runtime/tensor/copy.h"
#include "tools/rules/local_kernel.h"
#include "tools/rules/sample_tensors.h"

namespace weft {
namespace {

TensorTypes TypesOf(const OpSample& sample) {
  TensorTypes types;
  for (const SampleOperand& operand : sample.operands) types.push_back(operand.type);
  return types;
}

bool Takes(const OpDef& op, const OpSample& sample) {
  try {
    op.Infer(TypesOf(sample), sample.attributes.get());
    return true;
  } catch (const Error&) {
    return false;
  }
}

// `base` with factor `factor` of extent `extent`, wherever the operands carry it.
OpSample WithExtent(const OpSample& base, const ShardingRule& rule, int factor, int64_t extent) {
  OpSample sample = base;
  for (size_t i = 0; i < sample.operands.size(); ++i) {
    const int dim = DimOfFactor(rule.operands[i], factor);
    if (dim >= 0) sample.operands[i].type.shape[dim] = extent;
  }
  return sample;
}

// The extent of a factor in the operands of `sample`; -1 if none carries it.
int64_t ExtentOf(const OpSample& sample, const ShardingRule& rule, int factor) {
  for (size_t i = 0; i < sample.operands.size(); ++i) {
    const int dim = DimOfFactor(rule.operands[i], factor);
    if (dim >= 0) return sample.operands[i].type.shape[dim];
  }
  return -1;
}

// Lets the ranges of integers follow what they index: a factor that their operand lacks and whose extent in
// `base` was their bound; one that the rule marks as indexed, if there is a choice.
void FollowIndices(const OpSample& base, const ShardingRule& rule, OpSample& sample) {
  for (size_t i = 0; i < sample.operands.size(); ++i) {
    SampleOperand& operand = sample.operands[i];
    if (IsFloating(operand.type.dtype)) continue;
    int indexed = -1;
    for (size_t f = 0; f < rule.factors.size(); ++f) {
      const int factor = static_cast<int>(f);
      const bool fits = DimOfFactor(rule.operands[i], factor) < 0 &&
                        static_cast<double>(ExtentOf(base, rule, factor)) == operand.high;
      if (fits && (indexed < 0 || rule.factors[f].indexed)) indexed = factor;
    }
    if (indexed < 0) continue;
    const double extent = static_cast<double>(ExtentOf(sample, rule, indexed));
    if (extent > operand.low) operand.high = extent;
  }
}

// The extents of `wanted` (by factor; -1 leaves one alone), those that the op takes.
OpSample WithExtents(const OpDef& op, const OpSample& base, const ShardingRule& rule,
                     const std::vector<int64_t>& wanted) {
  OpSample sample = base;
  for (size_t factor = 0; factor < wanted.size(); ++factor) {
    if (wanted[factor] < 0) continue;
    OpSample next = WithExtent(sample, rule, static_cast<int>(factor), wanted[factor]);
    if (Takes(op, next)) sample = std::move(next);
  }
  FollowIndices(base, rule, sample);
  return sample;
}

// The wanted extents of every variant.
std::vector<std::vector<int64_t>> WantedExtents(size_t num_factors, bool exhaustive) {
  constexpr int64_t kUneven[] = {5, 3, 7};
  constexpr int64_t kEven[] = {4, 6, 8};
  std::vector<std::vector<int64_t>> wanted(2);
  for (size_t i = 0; i < num_factors; ++i) {
    wanted[0].push_back(kUneven[i % 3]);
    wanted[1].push_back(kEven[i % 3]);
  }
  const auto one = [&](size_t factor, int64_t extent) {
    std::vector<int64_t> extents(num_factors, -1);
    extents[factor] = extent;
    return extents;
  };
  for (int64_t extent : {1, 0}) {
    for (size_t i = 0; i < num_factors; ++i) {
      wanted.push_back(one(i, extent));
      for (size_t j = 0; exhaustive && j < num_factors; ++j) {
        if (j == i || (extent == 1 && j < i)) continue;
        wanted.push_back(one(i, extent));
        wanted.back()[j] = 1;
      }
    }
  }
  return wanted;
}

// Puts `value` into one of the elements, by the generator's choice.
void Plant(const Tensor& tensor, double value, std::mt19937_64& random) {
  const int64_t element = static_cast<int64_t>(random() % static_cast<uint64_t>(tensor.num_elements()));
  FillTensor(tensor.Reshape({tensor.num_elements()}).Slice(0, element, 1), value);
}

std::vector<Tensor> WholeResult(const OpCase& c, const std::vector<Tensor>& operands) {
  ThreadPool pool(1);
  const std::shared_ptr<Allocator> allocator = MakeAllocator({c.device});
  KernelContext context{pool, allocator};
  std::vector<Piece> pieces;
  for (const Tensor& tensor : operands) {
    pieces.push_back({CloneTensor(tensor, allocator), WholeBox(tensor.shape())});
  }
  std::vector<ShardBox> boxes;
  for (const TensorType& type : c.output_types) boxes.push_back(WholeBox(type.shape));
  std::vector<Tensor> outputs =
      RunKernel(*c.op, context, pieces, boxes, c.sample.attributes.get(), c.sample.scalars.get());
  for (Tensor& output : outputs) output = OnHost(output);
  return outputs;
}

}  // namespace

std::string OpCase::ToString() const { return absl::StrCat(CallText(*op, sample), ", rule ", rule); }

OpCase MakeCase(const OpDef& op, const OpSample& sample, int sample_number) {
  OpCase c = {.op = &op, .sample = InF64(sample), .sample_number = sample_number};
  if (!Takes(op, c.sample)) c.sample = sample;
  c.types = TypesOf(c.sample);
  const void* attributes = c.sample.attributes.get();
  c.output_types = op.Infer(c.types, attributes);
  c.call.rule = ShardingRule::Parse(op.Rule(c.types, attributes), c.types, c.output_types);
  c.rule = c.call.rule.ToString();
  WEFT_CHECK(ShardingRule::Parse(c.rule, c.types, c.output_types) == c.call.rule, CallText(op, c.sample),
             ": rule '", c.rule, "' does not parse to itself");
  c.call.linear = op.LinearGroups(static_cast<int>(c.types.size()));
  for (absl::string_view name : absl::StrSplit(op.in_place(), ' ', absl::SkipEmpty())) {
    c.call.in_place.push_back(op.FindValue(name));
  }
  c.call.not_floating = NotFloating(c.types);
  return c;
}

std::vector<OpCase> OpCases(const OpDef& op, bool exhaustive, DeviceType device) {
  std::vector<OpCase> cases;
  const std::vector<OpSample> samples = op.Samples();
  for (size_t number = 0; number < samples.size(); ++number) {
    OpCase base = MakeCase(op, samples[number], static_cast<int>(number));
    base.device = device;
    cases.push_back(base);
    for (const std::vector<int64_t>& wanted : WantedExtents(base.call.rule.factors.size(), exhaustive)) {
      OpCase varied = MakeCase(op, WithExtents(op, base.sample, base.call.rule, wanted), base.sample_number);
      varied.varied = true;
      varied.device = device;
      const bool known = absl::c_any_of(cases, [&](const OpCase& other) {
        return other.types == varied.types &&
               op.EqualAttributes(other.sample.attributes.get(), varied.sample.attributes.get()) &&
               other.sample_number == varied.sample_number;
      });
      if (!known) cases.push_back(std::move(varied));
    }
  }
  return cases;
}

std::vector<CaseValues> ValuesOf(const OpCase& c, uint64_t seed) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  std::mt19937_64 random(seed);
  std::vector<CaseValues> all;
  for (int draw = 0; draw < 2; ++draw) {
    all.push_back({.operands = RandomOperands(c.sample, random), .name = "ordinary"});
  }
  for (size_t i = 0; i < c.types.size(); ++i) {
    if (!IsFloating(c.types[i].dtype) || c.types[i].shape.num_elements() == 0) continue;
    for (const auto& [a, b, name] :
         {std::tuple(kInf, -0.0, "inf and -0"), std::tuple(-kInf, std::nan(""), "-inf and nan")}) {
      all.push_back({.operands = RandomOperands(c.sample, random),
                     .planted = static_cast<int>(i),
                     .negative_zero = b == 0,
                     .name = absl::StrCat(name, " in operand ", i)});
      Plant(all.back().operands[i], a, random);
      Plant(all.back().operands[i], b, random);
    }
  }
  std::vector<CaseValues> accepted;
  for (CaseValues& values : all) {
    try {
      values.outputs = WholeResult(c, values.operands);
      accepted.push_back(std::move(values));
    } catch (const Error&) {
      if (accepted.empty()) throw;
    }
  }
  return accepted;
}

}  // namespace weft

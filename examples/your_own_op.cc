// Declares an op that Weft does not have, outside Weft: its types, how it may be split, its gradient and its
// kernel. From then on it is like any other: it takes any layout, communicates where its rule needs it, and
// is differentiable.
//
//   bazel run //examples:your_own_op
//
// The op caps values softly, y = cap * tanh(x / cap), as Gemma does with logits. Prints:
//   4 ranks, x f32[6, 5] [dp, tp]: y matches one rank's, dx matches one rank's

#include <cmath>
#include <cstdio>
#include <vector>

#include "weft.h"

namespace {

using weft::DTensor;

// A static attribute is part of the cache key, so it has ==; Weft hashes its fields.
struct SoftCapAttributes {
  double cap = 30;
  bool operator==(const SoftCapAttributes&) const = default;
};

weft::TensorTypes Infer(absl::Span<const weft::TensorType> x, const SoftCapAttributes& a) {
  WEFT_REQUIRE(a.cap > 0, "soft_cap: expected a positive cap, got ", a.cap);
  WEFT_REQUIRE(x[0].dtype == weft::DType::kF32, "soft_cap: expected f32, got ", x[0].ToString());
  return {x[0]};
}

// Every element is computed by itself, so every dim may be split.
std::string Rule(absl::Span<const weft::TensorType> x, const SoftCapAttributes&) {
  return weft::ElementwiseRule(/*num_operands=*/1, /*num_outputs=*/1, x[0].ndim());
}

// dy/dx = 1 - (y / cap)^2, by ops, so that the gradient shards itself.
void Backward(weft::GradContext<SoftCapAttributes, weft::NoScalars>& ctx) {
  const double cap = ctx.attributes().cap;
  const weft::Value squared = ctx.Emit(weft::kSquare, {ctx.saved("y")});
  const weft::Value lost = ctx.Emit(weft::kScale, {squared}, {}, {.factor = 1 / (cap * cap)});
  const weft::Value dy = ctx.grad();
  ctx.SetGrad(0, ctx.Emit(weft::kSub, {dy, ctx.Emit(weft::kMul, {dy, lost})}));
}

constinit const weft::Op<SoftCapAttributes> kSoftCap = {
    {.name = "soft_cap", .operands = "x", .infer = Infer, .rule = Rule, .saves = "y", .backward = Backward}};

// The kernel sees this rank's piece; here the input is made row-major first.
void SoftCap(const weft::KernelCall<SoftCapAttributes, weft::NoScalars>& call) {
  const weft::Tensor x = weft::CloneTensor(call.inputs[0], call.context.allocator);
  const float* in = x.data<float>();
  float* out = call.outputs[0].data<float>();
  const float cap = static_cast<float>(call.attributes().cap);
  call.context.pool.ParallelFor(x.num_elements(), /*grain=*/4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = cap * std::tanh(in[i] / cap);
  });
}
const weft::RegisterKernel kRegister(kSoftCap, weft::DeviceType::kCpu, SoftCap);

struct Result {
  std::vector<float> y;
  std::vector<float> dx;
};

Result Run(const weft::DeviceMesh& mesh, const std::vector<weft::AxisPlacement>& placements) {
  Result result;
  weft::RunRanks(static_cast<int>(mesh.num_ranks()), [&](weft::World& world) {
    const auto context = weft::Bind(world, mesh);
    const weft::Layout layout(mesh, 2, placements);
    const DTensor x = weft::RandomNormal(context, weft::DType::kF32, {6, 5}, layout, "x").RequiresGrad();
    const DTensor y = weft::Call(kSoftCap, {x}, {.cap = 2});
    weft::Backward(weft::Sum(y * y));
    const Result here = {y.FullTensor().ToVector<float>(), x.grad().FullTensor().ToVector<float>()};
    if (world.rank() == 0) result = here;
  });
  return result;
}

}  // namespace

int main() {
  const Result one = Run(weft::DeviceMesh(), {});
  const Result four =
      Run(weft::DeviceMesh::Parse("dp=2,tp=2"), {{"dp", weft::Shard(0)}, {"tp", weft::Shard(1)}});
  std::printf("4 ranks, x f32[6, 5] [dp, tp]: y %s one rank's, dx %s one rank's\n",
              one.y == four.y ? "matches" : "DIFFERS FROM", one.dx == four.dx ? "matches" : "DIFFERS FROM");
  return one.y == four.y && one.dx == four.dx ? 0 : 1;
}

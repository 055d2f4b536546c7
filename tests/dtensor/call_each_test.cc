// CallEach beside single calls, on a device that has batch kernels: the CPU, of ops of this file.

#include <atomic>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/dispatch.h"
#include "dtensor/functions.h"
#include "dtensor/redistribution/implicit.h"
#include "gmock/gmock.h"
#include "ops/op/kernel.h"
#include "ops/optimizer/optimizer_update.h"
#include "ops/sharding/sharding_rule.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::HasSubstr;
using Types = absl::Span<const TensorType>;

struct Term {
  double value = 0;
};

// y = x + value. Not linear, so that a Partial must be reduced first.
constinit const Op<NoAttributes, Term> kShift = {
    {.name = "shift",
     .operands = "x",
     .infer = [](Types types, const NoAttributes&) -> TensorTypes { return {types[0]}; },
     .rule = [](Types types, const NoAttributes&) { return ElementwiseRule(1, 1, types[0].ndim()); },
     .backward = [](GradContext<NoAttributes, Term>& context) { context.SetGrad(0, context.grad()); }}};

// p += value * g, in place.
constinit const Op<NoAttributes, Term> kMove = {
    {.name = "move",
     .operands = "p g",
     .outputs = "p",
     .infer = [](Types types, const NoAttributes&) -> TensorTypes { return {types[0]}; },
     .rule = [](Types types, const NoAttributes&) { return ElementwiseRule(2, 1, types[0].ndim()); },
     .in_place = "p"}};

using Call = KernelCall<NoAttributes, Term>;

void ShiftKernel(const Call& call) {
  const double* const x = call.inputs[0].data<double>();
  double* const y = call.outputs[0].data<double>();
  for (int64_t i = 0; i < call.outputs[0].num_elements(); ++i) y[i] = x[i] + call.scalars().value;
}

void MoveKernel(const Call& call) {
  double* const p = call.outputs[0].data<double>();
  const double* const g = call.inputs[1].data<double>();
  for (int64_t i = 0; i < call.outputs[0].num_elements(); ++i) p[i] += call.scalars().value * g[i];
}

// What the batch kernels have been given, by all ranks.
std::atomic<int> num_batches = 0;
std::atomic<int> num_calls = 0;

template <void (*kKernel)(const Call&)>
void InBatch(absl::Span<const KernelCallBase> calls) {
  ++num_batches;
  num_calls += static_cast<int>(calls.size());
  for (const KernelCallBase& call : calls) kKernel(Call(call));
}

const RegisterKernel kRegister[] = {{kShift, DeviceType::kCpu, ShiftKernel},
                                    {kMove, DeviceType::kCpu, MoveKernel}};
const RegisterBatchKernel kRegisterBatch[] = {{kShift, DeviceType::kCpu, InBatch<ShiftKernel>},
                                              {kMove, DeviceType::kCpu, InBatch<MoveKernel>}};

class CallEachTest : public testing::Test {
 protected:
  CallEachTest() { num_batches = num_calls = 0; }
};

TEST_F(CallEachTest, IsAsManySingleCalls) {
  OnMesh("a=2,b=2", [](const IntrusivePtr<MeshContext>& context) {
    struct Given {
      Tensor full;
      const char* layout;
    };
    const Given given[] = {{RandomF64({5, 3}, 1), "[a, -]"},       {RandomF64({5, 3}, 1), "[-, -]"},
                           {RandomF64({4}, 2), "[b.a]"},           {RandomF64({3, 2}, 3), "[-, a] P{b}"},
                           {RandomF64({0, 3}, 4), "[a, b]"},       {RandomF64({}, 5), "[]"},
                           {RandomF64({5, 3}, 6), "[-, -] P{a,b}"}};
    std::vector<DTensor> operands;
    std::vector<EachCall<Term>> calls;
    for (const Given& one : given) operands.push_back(Lay(context, one.full, one.layout));
    for (size_t i = 0; i < operands.size(); ++i) {
      calls.push_back({.operands = {operands[i]}, .scalars = {.value = 0.5 + static_cast<double>(i)}});
    }
    context->world().ledger().Clear();
    const std::vector<DTensors> together = CallEach(kShift, calls);
    const std::string moved = LedgerText(*context);
    EXPECT_THAT(moved, HasSubstr("all_reduce"));
    context->world().ledger().Clear();
    ASSERT_EQ(together.size(), operands.size());
    for (size_t i = 0; i < operands.size(); ++i) {
      const DTensor alone = weft::Call(kShift, {operands[i]}, {}, calls[i].scalars);
      ASSERT_EQ(together[i].size(), 1u);
      EXPECT_EQ(together[i][0].ToString(), alone.ToString());
      EXPECT_TRUE(SameBits(together[i][0].ToLocal(), alone.ToLocal())) << alone.ToString();
    }
    EXPECT_EQ(LedgerText(*context), moved);
  });
  EXPECT_EQ(num_batches, 4);  // ranks
  EXPECT_EQ(num_calls, 4 * 7);
}

TEST_F(CallEachTest, IsRecorded) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({5, 3}, 1), "[a, -]").RequiresGrad();
    const DTensor y = Lay(context, RandomF64({4}, 2), "[-]").RequiresGrad();
    const DTensor constant = Lay(context, RandomF64({4}, 3), "[-]");
    const auto outputs = CallEach(kShift, {{.operands = {x}}, {.operands = {y}}, {.operands = {constant}}});
    EXPECT_FALSE(outputs[2][0].requires_grad());
    Backward(Sum(outputs[0][0]) + Sum(2.0 * outputs[1][0]));
    EXPECT_EQ(x.grad().FullTensor().ToVector<double>(), std::vector<double>(15, 1));
    EXPECT_EQ(y.grad().FullTensor().ToVector<double>(), std::vector<double>(4, 2));
  });
}

TEST_F(CallEachTest, WritesInPlace) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    std::vector<DTensor> ps, gs;
    std::vector<EachCall<Term>> calls;
    for (const char* layout : {"[a]", "[-]", "[a]"}) {
      ps.push_back(Lay(context, Tensor::FromValues<double>({3}, {1, 2, 3}), layout));
      gs.push_back(Lay(context, Tensor::FromValues<double>({3}, {10, 20, 30}), layout));
    }
    for (size_t i = 0; i < ps.size(); ++i) {
      calls.push_back({.operands = {ps[i], gs[i]}, .scalars = {.value = static_cast<double>(i)}});
    }
    const auto outputs = CallEach(kMove, calls);
    for (size_t i = 0; i < ps.size(); ++i) {
      const double k = 1 + 10 * static_cast<double>(i);
      EXPECT_EQ(ps[i].FullTensor().ToVector<double>(), (std::vector<double>{k, 2 * k, 3 * k}));
      EXPECT_TRUE(outputs[i].empty());
      EXPECT_EQ(ps[i].impl()->version(), 1);
    }
  });
}

TEST_F(CallEachTest, OfNothingAndMisuse) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    EXPECT_TRUE(CallEach(kShift, {}).empty());
    const DTensor p = Lay(context, RandomF64({4}, 1), "[a]");
    const DTensor partial = Lay(context, RandomF64({4}, 1), "[-] P{a}");
    const std::vector<double> before = p.ToLocal().ToVector<double>();
    EXPECT_EQ(ErrorOf([&] {
                CallEach(kMove, {{.operands = {p, p}}, {.operands = {p.Detach(), p}}});
              }),
              "move: two of the calls write the same memory; the second is move(f64[4] [a], f64[4] [a])");
    EXPECT_EQ(p.ToLocal().ToVector<double>(), before);
    EXPECT_THAT(ErrorOf([&] {
                  CallEach(kShift, {{.operands = {p}}, {.operands = {DTensor()}}});
                }),
                HasSubstr("shift: operand 0 is undefined"));
    const ImplicitRedistributionGuard guard(context->state(), ImplicitRedistribution::kForbid);
    EXPECT_THAT(ErrorOf([&] {
                  CallEach(kShift, {{.operands = {p}}, {.operands = {partial}}});
                }),
                HasSubstr("shift"));
  });
  EXPECT_EQ(num_batches, 0);
}

// Without a batch kernel of its device: one call after the other.
TEST_F(CallEachTest, WorksWithoutABatchKernel) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({5, 3}, 1), "[a, -]");
    const DTensor y = Lay(context, RandomF64({4}, 2), "[-]");
    const auto outputs = CallEach(kAddAll, {{.operands = {x, x, x}}, {.operands = {y}}});
    EXPECT_TRUE(SameBits(outputs[0][0].ToLocal(), Add(Add(x, x), x).ToLocal()));
    EXPECT_TRUE(SameBits(outputs[1][0].ToLocal(), y.ToLocal()));
  });
}

// All that lies alike is added where it lies.
TEST_F(CallEachTest, AddAllKeepsPartialTerms) {
  OnMesh("a=2,b=2", [](const IntrusivePtr<MeshContext>& context) {
    std::vector<DTensor> terms;
    std::vector<double> expected(4, 0);
    for (uint64_t i = 0; i < 20; ++i) {
      const Tensor full = WholeNumbers(DType::kF64, {4});
      terms.push_back(Lay(context, full, "[a] P{b}"));
      for (size_t j = 0; j < 4; ++j) expected[j] += full.ToVector<double>()[j];
    }
    context->world().ledger().Clear();
    const DTensor sum = CallAll(kAddAll, terms)[0];
    EXPECT_EQ(LayoutText(sum), "[a] P{b}");
    EXPECT_EQ(LedgerText(*context), "");
    EXPECT_EQ(sum.FullTensor().ToVector<double>(), expected);
  });
}

}  // namespace
}  // namespace weft

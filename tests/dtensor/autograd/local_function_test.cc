// The typed borders between DTensors and local pieces: FromLocal, RequiresGrad(layout), CallLocal.

#include "dtensor/autograd/local_function.h"

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/redistribution/agreement.h"
#include "gmock/gmock.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::HasSubstr;

Layout Parse(const IntrusivePtr<MeshContext>& context, absl::string_view text) {
  return Layout::Parse(text, context->mesh());
}

TEST(FromLocalTest, TheShapeFollowsFromThePiecesOfAnyLayout) {
  for (const Shape& shape : {Shape{5, 3}, Shape{1, 2}, Shape{0, 4}, Shape{7, 1}}) {
    const Tensor full = WholeNumbers(DType::kF32, shape);
    OnMesh("a=2,b=2", [&](const IntrusivePtr<MeshContext>& context) {
      for (const Layout& layout : AllLayouts(context->mesh(), 2, {ReduceOp::kSum})) {
        const Tensor piece = PieceOf(full, layout, context->mesh(), context->world().rank());
        const DTensor x = DTensor::FromLocal(context, piece, layout);
        ASSERT_EQ(x.shape(), shape) << layout;
        ASSERT_EQ(x.ToLocal().buffer(), piece.buffer());
        ASSERT_TRUE(SameBits(x.FullTensor(), full)) << layout;
      }
    });
  }
}

TEST(FromLocalTest, ScalarsAndOneDevice) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const Tensor three = Tensor::FromValues<float>({}, {3});
    EXPECT_EQ(DTensor::FromLocal(context, three, Parse(context, "[] P{a}")).Item(), 6);
  });
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = DTensor::FromLocal(context, WholeNumbers(DType::kI32, {2, 3}), Layout(2, 0));
    EXPECT_EQ(x.shape(), Shape({2, 3}));
  });
}

// Every rank gets the error, and it says who holds what instead of what.
TEST(FromLocalTest, PiecesThatAreNotTheRulesAreNamed) {
  OnMesh("a=2,b=2", [](const IntrusivePtr<MeshContext>& context) {
    const auto from_rows = [&](const std::vector<int64_t>& rows, absl::string_view layout) {
      const Tensor local = WholeNumbers(DType::kF32, {rows[context->world().rank()], 4});
      return ErrorOf([&] { DTensor::FromLocal(context, local, Parse(context, layout)); });
    };
    // 1 + 4 is 5 rows, but the rule cuts 3 + 2.
    EXPECT_EQ(
        from_rows({1, 1, 4, 4}, "[a, -]"),
        "FromLocal: the pieces add up to f32[5, 4], which [a, -] cuts in ceil chunks, but rank 0 (a=0, b=0) "
        "has [1, 4], the rule gives it [3, 4]; rank 1 (a=0, b=1) has [1, 4], the rule gives it [3, 4]; rank "
        "2 "
        "(a=1, b=0) has [4, 4], the rule gives it [2, 4]; rank 3 (a=1, b=1) has [4, 4], the rule gives it "
        "[2, "
        "4]");
    // Copies that differ.
    EXPECT_THAT(
        from_rows({3, 2, 2, 2}, "[a, -]"),
        HasSubstr(
            "[5, 4], which [a, -] cuts in ceil chunks, but rank 1 (a=0, b=1) has [2, 4], the rule gives "
            "it [3, 4]"));
    // Nested: 5 over 2 x 2 is 2 1 1 1.
    EXPECT_EQ(from_rows({2, 1, 1, 1}, "[a.b, -]"), "nothing was thrown");
    EXPECT_THAT(from_rows({2, 1, 2, 0}, "[a.b, -]"),
                HasSubstr("rank 2 (a=1, b=0) has [2, 4], the rule gives it [1, 4]"));
  });
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const bool first = context->world().rank() == 0;
    const auto error_of = [&](const Tensor& local) {
      return ErrorOf([&] { DTensor::FromLocal(context, local, Parse(context, "[a, -]")); });
    };
    EXPECT_EQ(error_of(WholeNumbers(first ? DType::kF32 : DType::kF64, {2, 3})),
              "FromLocal: expected pieces of one dtype and 2 dims for layout [a, -], but rank 1 (a=1) has "
              "f64[2, 3] "
              "where rank 0 has f32[2, 3]");
    EXPECT_THAT(error_of(WholeNumbers(DType::kF32, first ? Shape{2, 3} : Shape{6})),
                HasSubstr("but rank 1 (a=1) has f32[6] where"));
  });
}

// A kernel that got a pointer of another device's memory would read elsewhere, or end the program.
TEST(FromLocalTest, APieceOfAnotherDeviceIsRefused) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const Tensor local = Tensor::Empty(MakeMetaAllocator(), DType::kF32, {2, 3});
    const Layout layout = Parse(context, "[a, -]");
    const std::string expected =
        "FromLocal: the piece f32[2, 3] lies on meta:0, expected this rank's device, cpu:0";
    EXPECT_EQ(ErrorOf([&] { DTensor::FromLocal(context, local, layout, {4, 3}); }), expected);
    EXPECT_EQ(ErrorOf([&] { DTensor::FromLocal(context, local, layout); }), expected);
    const LocalFunction elsewhere = {.name = "elsewhere",
                                     .operands = {{layout, layout}},
                                     .outputs = {{{DType::kF32, {4, 3}}, layout, layout}},
                                     .forward = [&](absl::Span<const Tensor>) { return std::vector{local}; },
                                     .backward = nullptr};
    const DTensor x = Lay(context, WholeNumbers(DType::kF32, {4, 3}), layout);
    EXPECT_EQ(ErrorOf([&] { CallLocal(elsewhere, {x}); }),
              "elsewhere: output 0: the piece f32[2, 3] lies on meta:0, expected this rank's device, cpu:0");
  });
  const auto on_meta = [](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh::Parse(""));
    const Tensor local = WholeNumbers(DType::kF32, {2});
    EXPECT_EQ(ErrorOf([&] { DTensor::FromLocal(context, local, Layout(1, 0), {2}); }),
              "FromLocal: the piece f32[2] lies on cpu:0, expected this rank's device, meta:0");
  };
  RunRanks(1, on_meta, {.device = DeviceType::kMeta});
}

TEST(FromLocalTest, ReplicasAreComparedOnRequest) {
  OnMesh("a=2,b=2", [](const IntrusivePtr<MeshContext>& context) {
    const int rank = context->world().rank();
    const auto error_of = [&](const std::vector<float>& by_rank, absl::string_view layout,
                              const Shape& shape) {
      const Tensor local = Tensor::FromValues<float>({1, 2}, {7, by_rank[rank]});
      return ErrorOf([&] {
        DTensor::FromLocal(context, local, Parse(context, layout), shape, {.check_replicas = true});
      });
    };
    const std::string fine = "nothing was thrown";
    EXPECT_EQ(error_of({1, 1, 1, 1}, "[-, -]", {1, 2}), fine);
    EXPECT_EQ(error_of({1, 1, 2, 2}, "[a, -]", {2, 2}), fine);
    EXPECT_EQ(error_of({1, 2, 3, 4}, "[a.b, -]", {4, 2}), fine);
    EXPECT_EQ(error_of({1, 2, 3, 4}, "[-, -] P{a,b}", {1, 2}), fine) << "terms differ";
    EXPECT_EQ(error_of({1, 2, 1, 2}, "[-, -] P{b}", {1, 2}), fine);
    EXPECT_EQ(
        error_of({1, 1, 2, 3}, "[a, -]", {2, 2}),
        "FromLocal: f32[2, 2] [a, -] says that replicas are equal, but rank 3 (a=1, b=1) differs from rank 2 "
        "(a=1, b=0)");
    EXPECT_THAT(
        error_of({1, 2, 1, 3}, "[-, -]", {1, 2}),
        HasSubstr("rank 1 (a=0, b=1) differs from rank 0 (a=0, b=0); rank 3 (a=1, b=1) differs from rank 0"));
    EXPECT_THAT(error_of({1, 2, 1, 3}, "[-, -] P{b}", {1, 2}),
                HasSubstr("rank 3 (a=1, b=1) differs from rank 1"));
    // Bits: a zero of the other sign is another value.
    EXPECT_THAT(error_of({0.f, -0.f, 0.f, 0.f}, "[-, -]", {1, 2}), HasSubstr("rank 1 (a=0, b=1) differs"));
    // Without the option nobody asks.
    context->world().ledger().Clear();
    DTensor::FromLocal(context, Tensor::FromValues<float>({1}, {static_cast<float>(rank)}), Layout(1, 2),
                       {1});
    EXPECT_EQ(LedgerText(*context), "");
  });
}

// Any element, anywhere, of any dtype's width, and not contiguous.
TEST(FromLocalTest, OneChangedElementIsFound) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kU8}) {
      for (int64_t changed : {0, 1, 7, 14}) {
        const Tensor local = WholeNumbers(dtype, {3, 5});
        if (context->world().rank() == 1) FillTensor(local.Reshape({15}).Slice(0, changed, 1), 99);
        const Tensor view = ColumnMajor(local);
        const TensorType type = {dtype, {3, 5}};
        EXPECT_THAT(ErrorOf([&] { CheckReplicas(*context, view, type, Layout(2, 1), "test"); }),
                    HasSubstr("rank 1 (a=1) differs"))
            << DTypeName(dtype) << " " << changed;
        EXPECT_EQ(
            ErrorOf([&] { CheckReplicas(*context, view, type, Parse(context, "[-, -] P{a}"), "test"); }),
            "nothing was thrown");
      }
    }
  });
}

// A leaf made of terms, whose gradient comes to rest as declared: in the leaf's stead a plain tensor's.
TEST(FromLocalTest, StatesHowItsGradientRests) {
  const Tensor full = RandomF64({5, 3}, 1);
  const Tensor seed = RandomF64({5, 3}, 2);
  OnMesh("a=2", [&](const IntrusivePtr<MeshContext>& context) {
    for (const char* lies : {"[-, -]", "[a, -]", "[-, -] P{a}"}) {
      for (const char* rests : {"[-, -]", "[a, -]", "[-, a]", "[-, -] P{a}"}) {
        const Layout layout = Parse(context, lies);
        const Tensor piece = PieceOf(full, layout, context->mesh(), context->world().rank());
        const DTensor x =
            DTensor::FromLocal(context, piece, layout, {5, 3}, {.gradient = Parse(context, rests)});
        EXPECT_EQ(LayoutText(x), lies);
        const DTensor y = x * 3;
        Backward(y, Lay(context, seed, "[a, -]"));
        Backward(x + x, Lay(context, seed, "[-, a]"));
        EXPECT_EQ(LayoutText(x.grad()), rests) << lies;
        EXPECT_TRUE(AllClose(x.grad().FullTensor(), (Lay(context, seed, "[-, -]") * 5).FullTensor(), 1e-14))
            << lies << " " << rests;
      }
    }
    const DTensor x = Lay(context, full, "[a, -]");
    EXPECT_THAT(ErrorOf([&] { x.RequiresGrad(Layout(1, 1)); }), HasSubstr("gradient layout [-] has 1 dims"));
    EXPECT_THAT(ErrorOf([&] { x.RequiresGrad(Parse(context, "[-, -] P{a:max}")); }),
                HasSubstr("gradients add up, so that of f64[5, 3] [a, -] cannot lie as [-, -] P{a:max}"));
  });
}

// y = x w by a function of pieces: x split over rows, w whole. Each rank's dw is a part: Partial.
LocalFunction LocalProduct(const IntrusivePtr<MeshContext>& context, const Shape& y_shape,
                           const char* w_gradient, bool check_replicas) {
  const auto product = [](const Tensor& a, const Tensor& b) {
    const int64_t m = a.shape()[0], k = a.shape()[1], n = b.shape()[1];
    const std::vector<double> left = a.ToVector<double>();
    const std::vector<double> right = b.ToVector<double>();
    std::vector<double> result(m * n);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t c = 0; c < k; ++c) result[i * n + j] += left[i * k + c] * right[c * n + j];
      }
    }
    return Tensor::FromValues<double>({m, n}, result);
  };
  const Layout rows = Parse(context, "[a, -]");
  return {.name = "local_product",
          .operands = {{.layout = rows, .gradient = rows},
                       {.layout = Layout(2, 1), .gradient = Parse(context, w_gradient)}},
          .outputs = {{.type = {DType::kF64, y_shape}, .layout = rows, .gradient = rows}},
          .forward =
              [product](absl::Span<const Tensor> pieces) {
                return std::vector<Tensor>{product(pieces[0], pieces[1])};
              },
          .backward =
              [product](const LocalGradients& pieces) {
                const Tensor& dy = pieces.gradients[0];
                return std::vector<Tensor>{product(dy, pieces.operands[1].Transpose(0, 1)),
                                           product(pieces.operands[0].Transpose(0, 1), dy)};
              },
          .check_replicas = check_replicas};
}

TEST(CallLocalTest, IsAnOpAmongOthers) {
  const Tensor x_full = RandomF64({5, 3}, 1);
  const Tensor w_full = RandomF64({3, 4}, 2);
  OnMesh("a=2", [&](const IntrusivePtr<MeshContext>& context) {
    for (const char* x_layout : {"[a, -]", "[-, a]", "[-, -]", "[-, -] P{a}"}) {
      const auto run = [&](bool local) {
        const DTensor x = Lay(context, x_full, "[-, -]").RequiresGrad();
        const DTensor w = Lay(context, w_full, "[-, -]").RequiresGrad();
        const DTensor laid = Exp(x).Redistribute(Parse(context, x_layout));
        const DTensor y =
            local ? CallLocal(LocalProduct(context, {5, 4}, "[-, -] P{a}", /*check_replicas=*/true),
                              {laid, w})[0]
                  : MatMul(laid, w);
        Backward(Sum(Square(y)));
        return std::vector<Tensor>{y.FullTensor(), x.grad().FullTensor(), w.grad().FullTensor()};
      };
      const std::vector<Tensor> ours = run(/*local=*/true);
      const std::vector<Tensor> expected = run(/*local=*/false);
      for (size_t i = 0; i < ours.size(); ++i)
        EXPECT_TRUE(AllClose(ours[i], expected[i], 1e-12)) << x_layout << i;
    }
  });
}

// The classic silent bug: each rank's dw is a part, and declared to be the whole.
TEST(CallLocalTest, AGradientThatIsAPartAndDeclaredWholeIsFound) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({5, 3}, 1), "[a, -]");
    const DTensor w = Lay(context, RandomF64({3, 4}, 2), "[-, -]").RequiresGrad();
    const auto error_of = [&](const char* declared, bool check) {
      return ErrorOf([&] {
        Backward(Sum(CallLocal(LocalProduct(context, {5, 4}, declared, check), {x, w})[0]));
      });
    };
    EXPECT_EQ(
        error_of("[-, -]", /*check=*/true),
        "local_product: the gradient of operand 1: f64[3, 4] [-, -] says that replicas are equal, but rank 1 "
        "(a=1) differs from rank 0 (a=0)");
    EXPECT_EQ(error_of("[-, -] P{a}", /*check=*/true), "nothing was thrown");
  });
}

TEST(CallLocalTest, OutputsWithoutAGradientGetZeros) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const Layout rows = Parse(context, "[a]");
    const DTensor x = Lay(context, RandomF64({3}, 1), "[a]").RequiresGrad();
    int backward_calls = 0;
    const LocalFunction copies = {
        .name = "copies",
        .operands = {{.layout = rows, .gradient = rows}},
        .outputs = {{{DType::kF64, {3}}, rows, rows}, {{DType::kF64, {3}}, rows, rows}},
        .forward =
            [](absl::Span<const Tensor> pieces) {
              return std::vector<Tensor>{pieces[0], pieces[0]};
            },
        .backward =
            [&](const LocalGradients& pieces) {
              ++backward_calls;
              for (double element : pieces.gradients[1].ToVector<double>()) EXPECT_EQ(element, 0);
              EXPECT_EQ(pieces.outputs.size(), 2u);
              return std::vector<Tensor>{pieces.gradients[0]};
            }};
    const DTensors both = CallLocal(copies, {x});
    const DTensor loss = Sum(both[0] * 3);
    Backward(loss);
    EXPECT_EQ(backward_calls, 1);
    EXPECT_EQ(x.grad().FullTensor().ToVector<double>(), (std::vector<double>{3, 3, 3}));
    EXPECT_THAT(ErrorOf([&] { Backward(loss); }), HasSubstr("was used up by an earlier Backward"));
    const NoGradGuard no_grad(context->state());
    EXPECT_FALSE(CallLocal(copies, {x})[0].requires_grad());
  });
}

TEST(CallLocalTest, Misuse) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({3}, 1), "[a]").RequiresGrad();
    const Layout rows = Parse(context, "[a]");
    const LocalFunction identity = {
        .name = "f",
        .operands = {{rows, rows}},
        .outputs = {{{DType::kF64, {3}}, rows, rows}},
        .forward = [](absl::Span<const Tensor> pieces) { return std::vector<Tensor>{pieces[0]}; },
        .backward = [](const LocalGradients& pieces) { return std::vector<Tensor>{pieces.gradients[0]}; }};
    const auto error_with = [&](const std::function<void(LocalFunction&)>& change) {
      LocalFunction changed = identity;
      change(changed);
      return ErrorOf([&] { Backward(Sum(CallLocal(changed, {x})[0])); });
    };
    EXPECT_EQ(error_with([](LocalFunction&) {}), "nothing was thrown");
    EXPECT_EQ(ErrorOf([&] {
                CallLocal(identity, {x, x});
              }),
              "f: expected 1 operands (and at least 1), got 2");
    EXPECT_THAT(error_with([](LocalFunction& f) { f.backward = nullptr; }), HasSubstr("f has no backward"));
    EXPECT_EQ(error_with([](LocalFunction& f) { f.outputs[0].type.dtype = DType::kF32; }).substr(0, 17),
              "f: output 0 is f6");
    EXPECT_THAT(error_with([](LocalFunction& f) { f.outputs[0].type.shape = {7}; }),
                HasSubstr("f: output 0: layout [a] of f64[7] gives this rank ["));
    EXPECT_THAT(
        error_with([&](LocalFunction& f) { f.outputs[0].layout = Parse(context, "[-] P{a:max}"); }),
        HasSubstr("f: output 0 lies as [-] P{a:max}, and the gradient of a term is known for sums alone"));
    EXPECT_THAT(error_with([](LocalFunction& f) {
                  f.forward = [](absl::Span<const Tensor>) { return std::vector<Tensor>(); };
                }),
                HasSubstr("f: forward returned 0 pieces, declared are 1 outputs"));
    EXPECT_THAT(error_with([](LocalFunction& f) {
                  f.backward = [](const LocalGradients&) { return std::vector<Tensor>(); };
                }),
                HasSubstr("f: backward returned 0 gradients for 1 operands"));
    EXPECT_THAT(error_with([](LocalFunction& f) { f.operands[0].gradient = Layout(1, 1); }),
                HasSubstr("f: the gradient of operand 0: layout [-] of f64[3] gives this rank [3]"));
  });
}

}  // namespace
}  // namespace weft

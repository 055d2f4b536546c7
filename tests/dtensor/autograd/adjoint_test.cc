// The gradient of every redistribution is its adjoint: <Redistribute(x), y> = <x, Redistribute^T(y)>, in f64,
// through the public functions alone, for all pairs of layouts and gradients that arrive in any layout.

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "gtest/gtest.h"
#include "tests/dtensor/sharded_values.h"

namespace weft {
namespace {

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

std::vector<double> Values(const DTensor& x) { return x.FullTensor().ToVector<double>(); }

// One redistribution, entered from a leaf (`leaf`), or from the middle of a graph.
void CheckAdjoint(const IntrusivePtr<MeshContext>& context, const Tensor& x_full, const Tensor& y_full,
                  const Layout& from, const Layout& to, const Layout& arriving, bool leaf) {
  const Layout whole(2, context->mesh().num_axes());
  // A leaf of terms has a gradient like any other; it rests where it is told to.
  const DTensor x =
      leaf ? Lay(context, x_full, from).RequiresGrad(whole) : Lay(context, x_full, whole).RequiresGrad();
  const DTensor moved = (leaf ? x : (x * 3).Redistribute(from)).Redistribute(to);
  ASSERT_EQ(moved.layout(), to);
  Backward(moved, Lay(context, y_full, arriving));
  const std::vector<double> y = y_full.ToVector<double>();
  const double forward = Dot(Values(moved), y);
  const double backward = Dot(x_full.ToVector<double>(), Values(x.grad()));
  // Also the size of each, from the numbers alone: two wrongs must not make a right.
  const double expected = (leaf ? 1 : 3) * Dot(x_full.ToVector<double>(), y);
  const double bound = 1e-12 * static_cast<double>(y.size() + 1);
  const auto what = [&] {
    return absl::StrCat(from.ToString(context->mesh()), " -> ", to.ToString(context->mesh()),
                        ", gradient as ", arriving.ToString(context->mesh()), leaf ? ", leaf" : "");
  };
  ASSERT_NEAR(forward, backward, bound) << what();
  ASSERT_NEAR(forward, expected, bound) << what();
}

// `stride`: of the layouts that a gradient may arrive in, every how many-th is tried with a pair.
void CheckAll(absl::string_view mesh, const Shape& shape, size_t stride) {
  const Tensor x = RandomF64(shape, 1);
  const Tensor y = RandomF64(shape, 2);
  OnMesh(mesh, [&](const IntrusivePtr<MeshContext>& context) {
    const std::vector<Layout> layouts = AllLayouts(context->mesh(), 2, {ReduceOp::kSum, ReduceOp::kAvg});
    size_t turn = 0;
    for (const Layout& from : layouts) {
      for (const Layout& to : layouts) {
        for (size_t i = turn++ % stride; i < layouts.size(); i += stride) {
          CheckAdjoint(context, x, y, from, to, layouts[i], /*leaf=*/(turn + i) % 2 == 0);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  });
}

TEST(AdjointTest, OneAxis) {
  for (const Shape& shape : {Shape{5, 3}, Shape{1, 2}, Shape{0, 4}}) {
    CheckAll("a=2", shape, /*stride=*/1);
    CheckAll("a=3", shape, /*stride=*/1);
  }
}

TEST(AdjointTest, TwoAxes) { CheckAll("a=2,b=2", {5, 3}, /*stride=*/27); }
TEST(AdjointTest, TwoAxesSmallerThanTheMesh) { CheckAll("a=2,b=2", {2, 1}, /*stride=*/31); }

}  // namespace
}  // namespace weft

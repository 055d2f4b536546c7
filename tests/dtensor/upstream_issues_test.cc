// What failed in PyTorch's DTensor, by the number of the issue there (pytorch/pytorch): silent wrong numbers
// first. Each holds here, on uneven pieces where that was the point.

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/context/propagation_cache.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "mesh/redistribution/planner.h"
#include "mesh/shard_math.h"
#include "runtime/tensor/copy.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::HasSubstr;
using Context = IntrusivePtr<MeshContext>;

// The value of `function` of a tensor of whole numbers, and the gradient of its weighted sum: exact sums.
struct Outcome {
  Tensor value;
  Tensor gradient;
};
Outcome OutcomeOf(const Context& context, const Tensor& full, const Layout& layout,
                  const std::function<DTensor(const DTensor&)>& function) {
  const DTensor x = Lay(context, full, layout).RequiresGrad();
  const DTensor y = function(x);
  const Layout whole(y.ndim(), context->mesh().num_axes());
  Backward(Sum(Mul(y, Lay(context, WholeNumbers(DType::kF64, y.shape()), whole))));
  return {y.FullTensor(), x.grad().FullTensor()};
}

// That `function` on every layout of the mesh gives the values and gradients of one device.
void ExpectAsOnOneDevice(const char* mesh_text, const Shape& shape,
                         const std::function<DTensor(const DTensor&)>& function) {
  const Tensor full = WholeNumbers(DType::kF64, shape);
  Outcome expected;
  OnMesh("", [&](const Context& context) {
    expected = OutcomeOf(context, full, Layout(shape.ndim(), 0), function);
  });
  OnMesh(mesh_text, [&](const Context& context) {
    for (const Layout& layout : AllLayouts(context->mesh(), shape.ndim(), {})) {
      const Outcome outcome = OutcomeOf(context, full, layout, function);
      EXPECT_TRUE(AllClose(outcome.value, expected.value, 0)) << layout.ToString(context->mesh());
      EXPECT_TRUE(AllClose(outcome.gradient, expected.gradient, 0)) << layout.ToString(context->mesh());
    }
  });
}

std::string Moved(const Context& context, const std::function<void()>& function) {
  context->world().ledger().Clear();
  function();
  return LedgerText(*context);
}

// [12, 8] split by columns, viewed as [16, 6], passed as split by rows, with the wrong numbers.
TEST(UpstreamIssuesTest, issue_179502_view) {
  OnMesh("a=2", [](const Context& context) {
    const DTensor x = Lay(context, WholeNumbers(DType::kF64, {12, 8}), "[-, a]");
    EXPECT_THAT(ErrorOf([&] { View(x, {16, 6}); }), HasSubstr("its pieces are no boxes there"));
  });
  ExpectAsOnOneDevice("a=2", {12, 8}, [](const DTensor& x) { return Reshape(x, {16, 6}); });
  ExpectAsOnOneDevice("a=3", {12, 8}, [](const DTensor& x) { return Reshape(x, {16, 6}); });
}

// Unflatten of a dim that two axes split gave a wrong shape, or silently wrong gradients.
TEST(UpstreamIssuesTest, issue_186282_unflatten) {
  for (const char* mesh : {"cp=2,sp=2", "cp=3,sp=2"}) {
    ExpectAsOnOneDevice(mesh, {12, 3}, [](const DTensor& x) { return Unflatten(x, 0, {3, 4}); });
    ExpectAsOnOneDevice(mesh, {24}, [](const DTensor& x) { return Unflatten(x, 0, {2, 2, 6}); });
    ExpectAsOnOneDevice(mesh, {3, 5}, [](const DTensor& x) { return Flatten(x); });
  }
}

// index_put's rule allowed a split that put elements into the wrong pieces; on the split dim it failed
// (170934).
TEST(UpstreamIssuesTest, issue_172350_index_put) {
  for (const char* mesh : {"a=3", "a=2,b=2"}) {
    const auto index = [](const DTensor& x) {
      return Lay(x.context(), Tensor::FromValues<int64_t>({3}, {6, 0, 4}), Layout(1, x.layout().num_axes()));
    };
    ExpectAsOnOneDevice(mesh, {7, 2}, [&](const DTensor& x) {
      return IndexCopy(x, 0, index(x), Scale(Slice(x, 0, 1, 3), 2));
    });
    ExpectAsOnOneDevice(mesh, {7, 2},
                        [&](const DTensor& x) { return IndexAdd(x, 0, index(x), Slice(x, 0, 1, 3)); });
  }
}

// A product took operands whose contracted dims were cut in different orders, and multiplied strangers.
TEST(UpstreamIssuesTest, issue_166598_matmul_shard_order) {
  OnMesh("a=2,b=3", [](const Context& context) {
    const Tensor x = WholeNumbers(DType::kF64, {4, 7});
    const Tensor w = WholeNumbers(DType::kF64, {7, 5});
    const Tensor expected = MatMul(Lay(context, x, "[-, -]"), Lay(context, w, "[-, -]")).FullTensor();
    for (const char* x_layout : {"[-, a.b]", "[-, b.a]", "[a, b]"}) {
      for (const char* w_layout : {"[a.b, -]", "[b.a, -]", "[b, a]"}) {
        const DTensor y = MatMul(Lay(context, x, x_layout), Lay(context, w, w_layout));
        EXPECT_TRUE(AllClose(y.FullTensor(), expected, 0)) << x_layout << " " << w_layout;
      }
    }
  });
}

// Going through the local terms of a Partial changed gradients (also 173454); in a mixture of experts a
// reduction was missing (torchtitan 1805): a gradient is that of the global value, however often it was
// Partial on the way.
TEST(UpstreamIssuesTest, issue_172932_gradient_through_partial) {
  const Tensor up = WholeNumbers(DType::kF64, {4, 6});
  const Tensor down = WholeNumbers(DType::kF64, {6, 3});
  const auto function = [&](const DTensor& x) {
    const Context& context = x.context();
    const bool one_device = context->mesh().num_axes() == 0;
    const DTensor h = MatMul(x, Lay(context, up, one_device ? "[-, -]" : "[-, a]"));
    const DTensor y = MatMul(h, Lay(context, down, one_device ? "[-, -]" : "[a, -]"));
    return y.Redistribute(Layout(2, context->mesh().num_axes()));
  };
  ExpectAsOnOneDevice("a=2", {5, 4}, function);
  ExpectAsOnOneDevice("a=4", {5, 4}, function);
}

// FullTensor was wrong where local sizes did not follow the chunk rule, and no check noticed; from_local made
// up the global shape of uneven pieces (110762, 110781).
TEST(UpstreamIssuesTest, issue_144109_from_local_checks_its_piece) {
  OnMesh("a=2", [](const Context& context) {
    const Layout split = Layout::Parse("[a]", context->mesh());
    const int64_t rank = context->coordinate()[0];
    const Tensor right = Tensor::FromValues<double>({rank == 0 ? 3 : 2}, std::vector<double>(3 - rank, 1));
    EXPECT_EQ(DTensor::FromLocal(context, right, split, {5}).FullTensor().shape(), Shape({5}));
    const Tensor wrong = Tensor::FromValues<double>({rank == 0 ? 2 : 3}, std::vector<double>(2 + rank, 1));
    EXPECT_NE(ErrorOf([&] { DTensor::FromLocal(context, wrong, split, {5}); }), "nothing was thrown");
  });
}

// A tensor of 5 rows came back with 8. Its pieces were also not contiguous after an uneven gather (184443),
// and the strides of an uneven piece were those of an even one (118836).
TEST(UpstreamIssuesTest, issue_103306) {
  OnMesh("a=4", [](const Context& context) {
    for (const Shape& shape : {Shape{5, 3}, Shape{3, 5}, Shape{1, 5}, Shape{0, 2}, Shape{6, 6}}) {
      const Tensor full = WholeNumbers(DType::kF64, shape);
      for (const char* layout : {"[a, -]", "[-, a]"}) {
        const DTensor x = Lay(context, full, layout);
        EXPECT_TRUE(x.ToLocal().IsContiguous()) << shape << layout;
        const DTensor whole = x.Redistribute(Layout(2, 1));
        EXPECT_TRUE(SameBits(whole.ToLocal(), full)) << shape << layout;
        EXPECT_TRUE(whole.ToLocal().IsContiguous()) << shape << layout;
        const DTensor back = whole.Redistribute(x.layout());
        EXPECT_TRUE(SameBits(CloneTensor(back.ToLocal(), MakeCpuAllocator()), x.ToLocal()))
            << shape << layout;
      }
    }
  });
}

// Offsets of pieces over two axes were wrong where they are uneven: a checkpoint would have been, too.
TEST(UpstreamIssuesTest, issue_161368_offsets) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=3");
  for (const Shape& shape : {Shape{7, 5}, Shape{5, 2}, Shape{1, 4}, Shape{4, 0}}) {
    for (const Layout& layout : AllLayouts(mesh, 2, {})) {
      std::vector<int> held(shape.num_elements(), 0);
      for (int rank = 0; rank < 6; ++rank) {
        const ShardBox box = LocalBox(shape, layout, mesh, mesh.CoordinateOf(rank));
        for (int64_t i = 0; i < box.shape[0]; ++i) {
          for (int64_t j = 0; j < box.shape[1]; ++j) {
            ++held[(box.offset[0] + i) * shape[1] + box.offset[1] + j];
          }
        }
      }
      // Every element is held as often as there are replicas.
      int copies = 1;
      for (int axis = 0; axis < 2; ++axis) {
        if (layout.IsReplicate(axis)) copies *= static_cast<int>(mesh.axis_size(axis));
      }
      EXPECT_EQ(held, std::vector<int>(held.size(), copies)) << shape << " " << layout.ToString(mesh);
    }
  }
}

// What uneven pieces mean if the axes nest against the mesh's order was undefined (also 163843, 160266).
TEST(UpstreamIssuesTest, issue_168134_nested_uneven_order) {
  OnMesh("dp=2,tp=3", [](const Context& context) {
    const Tensor full = WholeNumbers(DType::kF64, {7, 2});
    for (const Layout& from : AllLayouts(context->mesh(), 2, {})) {
      const DTensor x = Lay(context, full, from);
      for (const char* to : {"[tp.dp, -]", "[dp.tp, -]", "[tp, dp]"}) {
        const Layout target = Layout::Parse(to, context->mesh());
        EXPECT_TRUE(SameBits(CloneTensor(x.Redistribute(target).ToLocal(), MakeCpuAllocator()),
                             PieceOf(full, target, context->mesh(), context->world().rank())))
            << from.ToString(context->mesh()) << " to " << to;
      }
    }
    // Gathering the innermost axis leaves the pieces of the outer one.
    const Layout both = Layout::Parse("[tp.dp, -]", context->mesh());
    const Layout outer = Layout::Parse("[tp, -]", context->mesh());
    const Redistribution plan =
        PlanRedistribution(both, outer, {full.dtype(), full.shape()}, context->mesh(), context->cost_model());
    EXPECT_EQ(plan.ToString(context->mesh()), "[tp.dp, -] -all_gather(dp)-> [tp, -]");
  });
}

// Backward of an uneven parameter gathered it (also 177174): the gradient is reduced to where it rests.
TEST(UpstreamIssuesTest, issue_107661_uneven_backward_gathers_nothing) {
  OnMesh("a=2", [](const Context& context) {
    const DTensor w = Lay(context, WholeNumbers(DType::kF64, {5, 3}), "[a, -]").RequiresGrad();
    const DTensor x = Lay(context, WholeNumbers(DType::kF64, {4, 5}), "[-, a]");
    const DTensor y = MatMul(x, w);
    const DTensor seed = Lay(context, WholeNumbers(DType::kF64, {4, 3}), "[-, -]");
    EXPECT_EQ(Moved(context, [&] { Backward(y, seed); }), "");
    EXPECT_EQ(LayoutText(w.grad()), "[a, -]");
  });
}

// A Partial was lost in the layouts of autograd, and an all-reduce came in that nothing asked for (also
// 180511).
TEST(UpstreamIssuesTest, issue_180486_partial_in_backward) {
  OnMesh("a=2", [](const Context& context) {
    const DTensor x = Lay(context, WholeNumbers(DType::kF64, {4, 6}), "[-, a]").RequiresGrad();
    const DTensor w = Lay(context, WholeNumbers(DType::kF64, {6, 3}), "[a, -]");
    DTensor y;
    const Layout whole(2, 1);
    EXPECT_EQ(Moved(context, [&] { y = MatMul(x, w).Redistribute(whole); }), "all_reduce a activation");
    const DTensor seed = Lay(context, WholeNumbers(DType::kF64, {4, 3}), whole);
    EXPECT_EQ(Moved(context, [&] { Backward(y, seed); }), "");
  });
}

// Random values differed between Shard(0) and Shard(1), and between 8, 4 and 1 ranks; dropout between a split
// tensor and a whole one (146190).
TEST(UpstreamIssuesTest, issue_168058_random_bits_know_no_layout) {
  const auto values = [](const Context& context, const Layout& layout) {
    const DTensor x = RandomNormal(context, DType::kF32, {7, 5}, layout, "weights");
    return std::pair(x.FullTensor(), Dropout(x, 0.5).FullTensor());
  };
  std::pair<Tensor, Tensor> expected;
  OnMesh("", [&](const Context& context) { expected = values(context, Layout(2, 0)); });
  for (const char* mesh : {"a=2", "a=4", "a=8", "a=2,b=2"}) {
    OnMesh(mesh, [&](const Context& context) {
      for (const Layout& layout : AllLayouts(context->mesh(), 2, {})) {
        // Call numbers, which dropout's bits depend on, start anew.
        const Context fresh = Bind(context->world(), context->mesh());
        const auto [normal, dropped] = values(fresh, layout);
        EXPECT_TRUE(SameBits(normal, expected.first)) << mesh << " " << layout;
        EXPECT_TRUE(SameBits(dropped, expected.second)) << mesh << " " << layout;
      }
    });
  }
}

// Stack never hit the propagation cache; optimizers filled it with an entry a scalar (178276, 178301).
TEST(UpstreamIssuesTest, issue_168255_what_the_cache_keys_on) {
  OnMesh("a=2", [](const Context& context) {
    const DTensor x = Lay(context, WholeNumbers(DType::kF64, {4, 2}), "[a, -]");
    const auto call = [&](int i) { return Scale(Stack({x, x}, 0), 1 + i); };
    call(0);
    const CacheStats before = context->cache().stats();
    for (int i = 1; i <= 100; ++i) call(i);
    const CacheStats after = context->cache().stats();
    EXPECT_EQ(after.misses, before.misses);
    EXPECT_EQ(after.hits, before.hits + 200);
  });
}

// A linear layer on activations split along the sequence failed for years, since it viewed them as a matrix
// (also 165600, 164558, 166483).
TEST(UpstreamIssuesTest, issue_172102_linear_on_a_split_sequence) {
  OnMesh("a=2", [](const Context& context) {
    const DTensor x = Lay(context, WholeNumbers(DType::kF64, {2, 5, 3}), "[-, a, -]");
    const DTensor w = Lay(context, WholeNumbers(DType::kF64, {3, 4}), "[-, -]");
    DTensor y;
    EXPECT_EQ(Moved(context, [&] { y = MatMul(x, w); }), "");
    EXPECT_EQ(LayoutText(y), "[-, a, -]");
    // Without a gradient mode, too (142190).
    const NoGradGuard no_grad(context->state());
    EXPECT_EQ(LayoutText(MatMul(x, w)), "[-, a, -]");
  });
}

// An operand on another mesh was taken as if it were on this one.
TEST(UpstreamIssuesTest, issue_126795_another_mesh_is_an_error) {
  OnMesh("a=2,b=2", [](const Context& context) {
    const Context flat = Bind(context, DeviceMesh::Parse("c=4"));
    const DTensor x = Lay(context, WholeNumbers(DType::kF64, {4}), "[a]");
    const DTensor y = Lay(flat, WholeNumbers(DType::kF64, {4}), "[c]");
    EXPECT_THAT(ErrorOf([&] { Add(x, y); }), HasSubstr("operands lie on different meshes: a=2, b=2 and c=4"));
  });
}

// Errors of sharding could not be read: types and layouts stand in one form, the op before them; and a wrong
// operand is named before anything about how it lies (124990).
TEST(UpstreamIssuesTest, issue_164543_errors_name_types_and_layouts) {
  OnMesh("a=2", [](const Context& context) {
    const DTensor x = Lay(context, WholeNumbers(DType::kF64, {5, 4}), "[a, -]");
    EXPECT_THAT(ErrorOf([&] { View(x, {20}); }), HasSubstr("View: f64[5, 4] [a, -] on mesh (a=2)"));
    EXPECT_THAT(ErrorOf([&] { Reshape(x, {21}); }), HasSubstr("reshape: f64[5, 4] has 20 elements"));
  });
}

}  // namespace
}  // namespace weft

#include "dtensor/nn/containers.h"

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/nn/linear.h"
#include "gmock/gmock.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::ElementsAre;

const LinearOptions kWide = {.weight = Initializer::Normal(0, 0.5)};

std::vector<std::string> ParameterPaths(Module& model) {
  std::vector<std::string> paths;
  for (const Parameter* parameter : model.AllParameters()) paths.push_back(parameter->path());
  return paths;
}

DTensor Activation(const DTensor& x) { return Gelu(x); }

void Fill(Sequential& net) {
  net.Add<Linear>(5, 7, kWide);
  net.Add<Lambda>(Activation);
  net.AddNamed<Linear>("head", 7, 3, kWide);
}

// The same as three members.
class Plain : public Module {
 public:
  Linear first{this, "0", 5, 7, kWide};
  Linear head{this, "head", 7, 3, kWide};

 protected:
  DTensor Forward(const DTensor& x) override { return head(Gelu(first(x))); }
};

TEST(SequentialTest, IsTheChainOfItsModules) {
  for (const char* mesh : {"", "dp=2", "dp=4"}) {
    OnMesh(mesh, [](const IntrusivePtr<MeshContext>& context) {
      Sequential net;
      Fill(net);
      Plain plain;
      Materialize(net, context, {.dtype = DType::kF64});
      Materialize(plain, context, {.dtype = DType::kF64});
      EXPECT_EQ(ParameterPaths(net), ParameterPaths(plain));
      const bool splits = context->mesh().num_axes() > 0;
      const DTensor x = Lay(context, RandomF64({6, 5}, 1), splits ? "[dp, -]" : "[-, -]");
      EXPECT_TRUE(SameBits(net(x).ToLocal(), plain(x).ToLocal()));
      Backward(Sum(Square(net(x))));
      Backward(Sum(Square(plain(x))));
      EXPECT_TRUE(SameBits(net.Get<Linear>(0).weight.grad().ToLocal(), plain.first.weight.grad().ToLocal()));
    });
  }
}

TEST(SequentialTest, OwnsItsModulesByNumberAndName) {
  Module root;
  {
    Sequential net(&root, "features");
    Fill(net);
    EXPECT_THAT(ParameterPaths(root), ElementsAre("features.0.weight", "features.0.bias",
                                                  "features.head.weight", "features.head.bias"));
    EXPECT_EQ(net.size(), 3);
    EXPECT_EQ(net[1].path(), "features.1");
    EXPECT_EQ(&net.Get<Linear>(2), &net[2]);
    EXPECT_EQ(ErrorOf([&] { net[3]; }), "container 'features' has 3 modules: there is no number 3");
    EXPECT_EQ(ErrorOf([&] { net[-1]; }), "container 'features' has 3 modules: there is no number -1");
    EXPECT_EQ(ErrorOf([&] { net.Get<Lambda>(0); }),
              "module 'features.0' is not of the class that was asked for");
    EXPECT_EQ(ErrorOf([&] { net.AddNamed<Linear>("head", 3, 3); }),
              "module 'features' already has a child 'head'");
    EXPECT_EQ(ErrorOf([&] { net.Add<Lambda>(nullptr); }),
              "lambda 'features.3': expected a function, got an empty one");
    EXPECT_EQ(net.size(), 3);  // what failed left no trace
    net.Add<Lambda>(Activation);
    EXPECT_EQ(net[3].path(), "features.3");
  }
  EXPECT_TRUE(root.children().empty());
}

TEST(SequentialTest, OfNoneIsItsInput) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Sequential net;
    EXPECT_TRUE(net.empty());
    Materialize(net, context);
    const DTensor x = Full(context, DType::kF32, {2}, 3);
    EXPECT_TRUE(SameBits(net(x).ToLocal(), x.ToLocal()));
  });
}

// Blocks by number, as PyTorch names them.
class Stack : public Module {
 public:
  explicit Stack(int count) {
    for (int i = 0; i < count; ++i) blocks.Append<Linear>(4, 4, kWide);
  }
  ModuleList blocks{this, "blocks"};

 protected:
  DTensor Forward(const DTensor& x) override {
    DTensor y = x;
    for (Module* block : blocks.children()) y = (*block)(y);
    return y;
  }
};

TEST(ModuleListTest, HasModulesByNumber) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Stack stack(2);
    EXPECT_THAT(ParameterPaths(stack),
                ElementsAre("blocks.0.weight", "blocks.0.bias", "blocks.1.weight", "blocks.1.bias"));
    Materialize(stack, context, {.dtype = DType::kF64});
    const DTensor x = Lay(context, RandomF64({3, 4}, 1), "[-, -]");
    const DTensor expected = stack.blocks.Get<Linear>(1)(stack.blocks[0](x));
    EXPECT_TRUE(SameBits(stack(x).ToLocal(), expected.ToLocal()));
    EXPECT_EQ(ErrorOf([&] { stack.blocks(x); }),
              "module 'blocks' does not take a single tensor: call it by its own signature");
    EXPECT_EQ(ErrorOf([&] { stack.blocks[2]; }), "container 'blocks' has 2 modules: there is no number 2");
  });
}

TEST(ModuleDictTest, HasModulesByKey) {
  Module root;
  ModuleDict heads(&root, "heads");
  Linear& left = heads.Insert<Linear>("left", 2, 3);
  heads.Insert<Linear>("right", 2, 4);
  EXPECT_THAT(heads.keys(), ElementsAre("left", "right"));
  EXPECT_EQ(&heads["left"], &left);
  EXPECT_EQ(&heads.Get<Linear>("left"), &left);
  EXPECT_EQ(heads["right"].path(), "heads.right");
  EXPECT_TRUE(heads.Contains("right"));
  EXPECT_FALSE(heads.Contains("up"));
  EXPECT_EQ(heads.Find("up"), nullptr);
  EXPECT_EQ(ErrorOf([&] { heads["up"]; }),
            "container 'heads' has no module 'up'; expected one of left, right");
  EXPECT_EQ(ErrorOf([&] { heads.Insert<Linear>("left", 1, 1); }),
            "module 'heads' already has a child 'left'");
  EXPECT_THAT(heads.keys(), ElementsAre("left", "right"));
}

}  // namespace
}  // namespace weft

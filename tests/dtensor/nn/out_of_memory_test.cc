// The error for lack of memory names the modules that hold it, on the CPU and on the device cuda.

#include <string>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/nn/module.h"
#include "dtensor/optim/adamw.h"
#include "gmock/gmock.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// What each tensor below has.
const Shape kShape = {64, 64};
constexpr int64_t kBytes = 16 << 10;

// y = x * w.
class Layer : public Module {
 public:
  Layer(Module* parent, std::string name) : Module(parent, std::move(name)) {}
  Parameter weight{this, "weight", {.shape = kShape}};

 protected:
  DTensor Forward(const DTensor& x) override { return x * weight.Value(); }
};

class Block : public Module {
 public:
  Block(Module* parent, std::string name) : Module(parent, std::move(name)) {}
  Layer up{this, "up"};
  Layer down{this, "down"};
};

class Model : public Module {
 public:
  Block first{this, "blocks.0"};
  Parameter scale{this, "scale", {.shape = kShape}};
  Layer head{this, "head"};
};

class OutOfMemoryTest : public testing::TestWithParam<DeviceType> {};

TEST_P(OutOfMemoryTest, NamesWhoHoldsTheMemory) {
  // Four parameters with their state, three activations, and little for scalars.
  const DeviceOptions memory = {.cap_bytes = 15 * kBytes + 1024};
  RunRanks(1,
           [&](World& world) {
             const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh());
             Model model;
             Materialize(model, context);
             AdamW optimizer(model.AllParameters(), {});
             const NoGradGuard no_grad(context->state());
             const DTensor x = Full(context, DType::kF32, kShape, 1);
             DTensor y = model.first.up(x);
             const DTensor z = model.first.down(y);
             const auto call_head = [&] { model.head(z); };
             EXPECT_THAT(
                 MessageOf(call_head),
                 AllOf(HasSubstr("cannot allocate 16384 bytes; live "), HasSubstr(", cap 246784 bytes"),
                       HasSubstr("; largest: 64 KiB in blocks.0.down (4 tensors), 64 KiB in blocks.0.up (4 "
                                 "tensors), 64 KiB in the root module or none (4 tensors), 48 KiB in head (3 "
                                 "tensors)")));
             y = DTensor();
             EXPECT_EQ(MessageOf(call_head), "no error");
           },
           {.device = GetParam(), .device_options = memory, .threads_per_rank = 1});
}

// Gradients belong to the module whose backward made them.
TEST_P(OutOfMemoryTest, NamesGradients) {
  const DeviceOptions memory = {.cap_bytes = 12 * kBytes};
  RunRanks(1,
           [&](World& world) {
             const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh());
             Model model;
             Materialize(model, context);
             const DTensor x = Full(context, DType::kF32, kShape, 1);
             Backward(Sum(model.head(x)));
             std::vector<DTensor> held;
             const std::string message = MessageOf([&] {
               while (true) held.push_back(Full(context, DType::kF32, kShape, 1));
             });
             EXPECT_THAT(message, HasSubstr("32 KiB in head (2 tensors)"));
             EXPECT_THAT(message, HasSubstr("16 KiB in blocks.0.up (1 tensor)"));
             EXPECT_THAT(message, Not(HasSubstr("elsewhere")));
           },
           {.device = GetParam(), .device_options = memory, .threads_per_rank = 1});
}

// Contexts come and go; what they have left is still named.
TEST_P(OutOfMemoryTest, NamesWhatAnEarlierContextHasMade) {
  RunRanks(
      1,
      [&](World& world) {
        Tensor kept;
        for (const char* path : {"early", "late"}) {
          const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh());
          const PathGuard guard(context->state(), context->state().PathId(path));
          const Tensor piece = Full(context, DType::kF32, kShape, 1).ToLocal();
          if (!kept.defined()) {
            kept = piece;
            continue;
          }
          EXPECT_THAT(MessageOf([&] { Full(context, DType::kF32, kShape, 1); }),
                      HasSubstr("; largest: 16 KiB in early (1 tensor), 16 KiB in late (1 tensor)"));
        }
        const Tensor more = Tensor::Empty(world.allocator(), DType::kF32, kShape);
        EXPECT_THAT(
            MessageOf([&] { Tensor::Empty(world.allocator(), DType::kF32, kShape); }),
            HasSubstr("; largest: 16 KiB in early (1 tensor), 16 KiB in the root module or none (1 tensor)"));
      },
      {.device = GetParam(), .device_options = {.cap_bytes = 5 * kBytes / 2}, .threads_per_rank = 1});
}

INSTANTIATE_TEST_SUITE_P(Devices, OutOfMemoryTest, testing::Values(DeviceType::kCpu, DeviceType::kCuda),
                         [](const auto& info) { return std::string(DeviceTypeName(info.param)); });

}  // namespace
}  // namespace weft

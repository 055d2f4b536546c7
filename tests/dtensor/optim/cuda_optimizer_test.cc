// Optimizers and the global norm on the device cuda, emulated: how many launches they take, and the CPU's
// bits.

#include <cmath>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/functions.h"
#include "dtensor/nn/module.h"
#include "dtensor/optim/adamw.h"
#include "dtensor/optim/clip.h"
#include "dtensor/optim/lion.h"
#include "dtensor/optim/sgd.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/dtensor/sharded_values.h"

namespace weft {
namespace {

using Placements = std::vector<int>;  // over how many axes dim 0 is split, for one parameter after the other

// Matrices and vectors of uneven extents, some of them empty, with gradients.
class Model : public Module {
 public:
  // `memory`: of every other parameter.
  Model(const IntrusivePtr<MeshContext>& context, int num_parameters, const Placements& placements,
        DType dtype, const ParameterMemory& memory = {}) {
    Bind(context);
    for (int i = 0; i < num_parameters; ++i) {
      const Shape shape = i % 3 != 0 ? Shape{i % 7, 5 + i % 4} : Shape{i % 13};
      Layout layout(shape.ndim(), context->mesh().num_axes());
      for (int axis = 0; axis < placements[static_cast<size_t>(i) % placements.size()]; ++axis) {
        layout = layout.WithShard(axis, 0);
      }
      all_.emplace_back(this, absl::StrCat("p", i),
                        ParameterSpec{.shape = shape, .initializer = Initializer::Constant(0.75)});
      if (i % 2 == 1) all_.back().set_memory(memory);
      all_.back().Materialize(context, dtype, dtype, {.at_rest = layout, .compute = layout});
    }
  }

  void SetGradients(uint64_t step) {
    uint64_t seed = step * 1000;
    for (Parameter& parameter : all_) {
      const DTensor& value = parameter.at_rest();
      std::vector<double> elements = RandomF64(value.shape(), ++seed).ToVector<double>();
      const Tensor full = FromDoubles(value.dtype(), value.shape(), elements);
      parameter.SetGrad(DTensor::Distribute(value.context(), full, value.layout()));
    }
  }

  int num_filled() {
    int count = 0;
    for (const Parameter& parameter : all_) count += parameter.spec().shape.num_elements() > 0;
    return count;
  }

 private:
  std::deque<Parameter> all_;
};

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(const std::vector<Parameter*>&)>;

std::vector<MakeOptimizer> Optimizers() {
  using Parameters = std::vector<Parameter*>;
  return {[](const Parameters& p) { return std::make_unique<AdamW>(p, AdamWOptions{.weight_decay = 0.3}); },
          [](const Parameters& p) { return std::make_unique<Sgd>(p, SgdOptions{.weight_decay = 0.1}); },
          [](const Parameters& p) { return std::make_unique<Sgd>(p, SgdOptions{.momentum = 0.9}); },
          [](const Parameters& p) {
            return std::make_unique<Sgd>(p, SgdOptions{.momentum = 0.9, .nesterov = true});
          },
          [](const Parameters& p) { return std::make_unique<Lion>(p, LionOptions{.weight_decay = 0.3}); }};
}

// Whole values of parameters and state.
std::vector<std::vector<double>> Values(const Optimizer& optimizer) {
  std::vector<std::vector<double>> values;
  for (const Parameter* parameter : optimizer.parameters()) {
    values.push_back(parameter->at_rest().FullTensor().ToVector<double>());
  }
  for (const auto& [name, tensor] : optimizer.State()) {
    values.push_back(tensor.FullTensor().ToVector<double>());
  }
  return values;
}

// Everything after a few steps, the norm of each, and that of gradients that are not finite.
struct Outcome {
  std::vector<std::vector<double>> values;
  std::vector<double> norms;
};

Outcome Train(DeviceType device, const char* mesh_text, const Placements& placements, DType dtype,
              const MakeOptimizer& make_optimizer, const ParameterMemory& memory = {}) {
  Outcome outcome;
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  RunRanks(static_cast<int>(mesh.num_ranks()),
           [&](World& world) {
             const IntrusivePtr<MeshContext> context = Bind(world, mesh);
             Model model(context, /*num_parameters=*/10, placements, dtype, memory);
             const std::unique_ptr<Optimizer> optimizer = make_optimizer(model.AllParameters());
             std::vector<double> norms;
             for (uint64_t step = 1; step <= 2; ++step) {
               model.SetGradients(step);
               norms.push_back(ComputeGlobalNorm(model.AllParameters(), 1).norm_squared.Item());
               // A factor of its own: the norm's last bits are each device's.
               optimizer->Step(0.1, Full(context, DType::kF32, {}, 0.375));
             }
             const std::vector<std::vector<double>> values = Values(*optimizer);
             // One element, on one rank.
             Parameter& parameter = *model.AllParameters()[5];
             std::vector<double> bad(static_cast<size_t>(parameter.spec().shape.num_elements()), 1);
             bad.back() = INFINITY;
             parameter.SetGrad(DTensor::Distribute(parameter.at_rest().context(),
                                                   FromDoubles(dtype, parameter.spec().shape, bad),
                                                   parameter.at_rest().layout()));
             optimizer->Step(0.1, ComputeGlobalNorm(model.AllParameters(), 1).scale);
             EXPECT_EQ(Values(*optimizer), values);
             if (world.rank() == 0) outcome = {values, norms};
           },
           {.device = device, .threads_per_rank = 1});
  return outcome;
}

// `memory`: of every other parameter, on the GPU alone.
void CompareDevices(const char* mesh, const Placements& placements, DType dtype, const MakeOptimizer& make,
                    const ParameterMemory& memory = {}) {
  const Outcome cpu = Train(DeviceType::kCpu, mesh, placements, dtype, make);
  const Outcome cuda = Train(DeviceType::kCuda, mesh, placements, dtype, make, memory);
  EXPECT_EQ(cuda.values, cpu.values) << mesh << " " << DTypeName(dtype);
  ASSERT_EQ(cuda.norms.size(), cpu.norms.size());
  for (size_t i = 0; i < cpu.norms.size(); ++i) {
    EXPECT_NEAR(cuda.norms[i], cpu.norms[i], (dtype == DType::kF64 ? 1e-14 : 1e-6) * cpu.norms[i]);
  }
}

TEST(CudaOptimizerTest, StepsHaveTheBitsOfTheCpu) {
  for (const MakeOptimizer& make : Optimizers()) {
    CompareDevices("", {0}, DType::kF64, make);
    CompareDevices("", {0}, DType::kBF16, make);
    CompareDevices("dp=2,tp=2", {2, 0, 1}, DType::kF32, make);
  }
}

TEST(CudaOptimizerTest, StateOnTheHostHasThem) {
  for (const MakeOptimizer& make : Optimizers()) {
    for (const ParameterMemory& memory : {ParameterMemory{.state_on_host = true},
                                          ParameterMemory{.state_on_host = true, .value_on_host = true}}) {
      CompareDevices("", {0}, DType::kF64, make, memory);
      CompareDevices("dp=2,tp=2", {2, 0, 1}, DType::kF32, make, memory);
    }
  }
}

// Kernels that `call` issues, on this process's only rank.
int64_t LaunchesOf(const std::function<void()>& call) {
  cudaDeviceSynchronize();
  const int64_t before = cuda_emulator::NumKernels();
  call();
  cudaDeviceSynchronize();
  return cuda_emulator::NumKernels() - before;
}

TEST(CudaOptimizerTest, LaunchesDoNotGrowWithParameters) {
  const auto run = [](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh());
    const std::vector<MakeOptimizer> optimizers = Optimizers();
    for (const int num_parameters : {1, 15, 150}) {
      Model model(context, num_parameters + 1, {0}, DType::kF32);
      model.SetGradients(1);
      const std::vector<Parameter*> parameters = model.AllParameters();
      DTensor scale;
      // Chunks, their sums, the sum of those, and the factor.
      EXPECT_EQ(LaunchesOf([&] { scale = ComputeGlobalNorm(parameters, 1).scale; }), 4) << num_parameters;
      for (const MakeOptimizer& make : optimizers) {
        const std::unique_ptr<Optimizer> optimizer = make(parameters);
        const int64_t launches = LaunchesOf([&] { optimizer->Step(0.1, scale); });
        // The count of updates, AdamW's rates; then a launch takes at least 40 tensors.
        EXPECT_GE(launches, 2);
        EXPECT_LE(launches, 2 + (model.num_filled() + 39) / 40) << num_parameters;
      }
    }
  };
  RunRanks(1, run, {.device = DeviceType::kCuda, .threads_per_rank = 1});
}

}  // namespace
}  // namespace weft

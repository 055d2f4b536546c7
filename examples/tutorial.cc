// The steps of docs/tutorial.md: a tensor, a mesh, a plan, training, saving.
//
//   bazel run //examples:tutorial                        # writes tutorial.safetensors where you stand
//   bazel run //examples:tutorial -- /tmp/net.safetensors
//
// Prints what each step shows; docs/tutorial.md goes through it. tests/examples/readme_test.sh holds the page
// to this file and to what it prints.

#include <cstdio>
#include <string>

#include "weft.h"

using weft::DTensor;

// Step 1: one value, held in pieces.
void ShowTensor(weft::World& world) {
  const weft::DeviceMesh mesh({{"dp", 2}, {"tp", 2}});
  const auto context = weft::Bind(world, mesh);
  const DTensor x = weft::Ones(context, weft::DType::kF64, {6, 4}, weft::Layout::Parse("[dp, -]", mesh));
  if (world.rank() == 0) std::printf("%s", weft::Visualize(x).c_str());
}

// Step 2: calls on pieces, and a sum that is still to be made.
void ShowLayouts(weft::World& world) {
  const weft::DeviceMesh mesh({{"dp", 2}, {"tp", 2}});
  const auto context = weft::Bind(world, mesh);
  const auto ones = [&](const weft::Shape& shape, const char* layout) {
    return weft::Ones(context, weft::DType::kF64, shape, weft::Layout::Parse(layout, mesh));
  };
  const DTensor hidden = weft::MatMul(ones({6, 4}, "[dp, -]"), ones({4, 8}, "[-, tp]"));
  const DTensor terms = weft::MatMul(hidden, ones({8, 4}, "[tp, -]"));
  const DTensor y = terms.Redistribute(weft::Layout::Parse("[dp, -]", mesh));
  const weft::CommReport report = weft::CollectCommReport(*context);
  if (world.rank() != 0) return;
  std::printf("hidden: %s\nterms:  %s\ny:      %s\n", hidden.ToString().c_str(), terms.ToString().c_str(),
              y.ToString().c_str());
  std::printf("%s", report.ToTable().c_str());
}

// Step 3: a model, which knows no mesh, and a plan, which knows no math.
class Net : public weft::Module {
 public:
  Net() : up(this, "up", 16, 64), down(this, "down", 64, 1) {}
  weft::Linear up, down;

 protected:
  DTensor Forward(const DTensor& x) override { return down(weft::Gelu(up(x))); }
};

const weft::Plan kPlan = {
    {"up", weft::ColumnParallel("tp")}, {"down", weft::RowParallel("tp")}, {"", weft::FullyShard("dp")}};

void ShowPlan() {
  const weft::DeviceMesh mesh({{"dp", 2}, {"tp", 2}});
  Net net;
  std::printf("%s", weft::ResolvePlan(net, mesh, kPlan).ToTable(net, mesh).c_str());
}

// Step 4: training. The samples of a step follow from the step alone, so every mesh draws the same ones.
DTensor Loss(Net& net, int step) {
  const auto& context = net.context();
  context->state().set_step(step);
  const weft::Layout whole(/*ndim=*/2, context->mesh().num_axes());
  const DTensor x = weft::RandomNormal(context, weft::DType::kF64, {64, 16}, whole, "x");
  return weft::Mean(weft::Square(net(x) - weft::Sum(x, {1}, /*keep_dims=*/true)));
}

void Train(Net& net, weft::Optimizer& optimizer, int first_step, int last_step) {
  for (int step = first_step; step <= last_step; ++step) {
    const DTensor loss = Loss(net, step);
    weft::Backward(loss);
    optimizer.Step(/*lr=*/0.02);
    optimizer.ZeroGrad();
    const double value = loss.Item();
    const weft::World& world = net.context()->world();
    if (world.rank() == 0 && step % 20 == 0) {
      std::printf("world of %d, step %d: loss %.6f\n", world.size(), step, value);
    }
  }
}

// Step 5: saving and loading, on any mesh. A file holds whole tensors and knows no mesh.
void Run(const weft::DeviceMesh& mesh, const weft::Plan& plan, int first_step, int last_step,
         const std::string& load, const std::string& save) {
  weft::RunRanks(static_cast<int>(mesh.num_ranks()), [&](weft::World& world) {
    Net net;
    weft::Parallelize(net, world, mesh, plan, {.dtype = weft::DType::kF64});
    weft::Sgd optimizer(net.AllParameters(), {.momentum = 0.9});
    if (!load.empty()) {
      weft::SafetensorsReader reader(load);
      weft::LoadParameters(reader, net);
      weft::LoadOptimizerState(reader, optimizer);
    }
    Train(net, optimizer, first_step, last_step);
    if (!save.empty()) {
      weft::SaveTensors(save, weft::CheckpointTensors(net, optimizer), {{"step", std::to_string(last_step)}});
    }
  });
}

int main(int argc, char** argv) {
  const std::string path = weft::UserPath(argc > 1 ? argv[1] : "tutorial.safetensors");
  const weft::DeviceMesh one, four({{"dp", 2}, {"tp", 2}}), two({{"dp", 2}});
  weft::RunRanks(4, ShowTensor);
  weft::RunRanks(4, ShowLayouts);
  ShowPlan();
  Run(one, {}, 1, 60, /*load=*/"", /*save=*/"");
  Run(four, kPlan, 1, 40, /*load=*/"", /*save=*/path);
  Run(two, {{"", weft::FullyShard("dp")}}, 41, 60, /*load=*/path, /*save=*/"");
}

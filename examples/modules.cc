// The steps of docs/modules.md: a module of one's own, containers, a summary, training and evaluation under plans, hooks,
// and a trained body under another head.
//
//   bazel run //examples:modules                        # writes modules.safetensors where you stand
//   bazel run //examples:modules -- /tmp/net.safetensors
//
// Prints what each step shows; tests/examples/readme_test.sh holds the page to this file and to what it prints.

#include <cstdio>
#include <string>

#include "weft.h"

using weft::DTensor;
namespace nn = weft::nn;

// Step 1: a module of one's own. x + norm(conv(relu(norm(conv(x))))), then relu.
class Block : public nn::Module {
 public:
  Block(nn::Module* parent, std::string name, int64_t channels)
      : Module(parent, std::move(name)),
        conv1(this, "conv1", channels, channels, /*kernel=*/3, {.padding = {1, 1}, .bias = false}),
        norm1(this, "norm1", channels),
        conv2(this, "conv2", channels, channels, /*kernel=*/3, {.padding = {1, 1}, .bias = false}),
        norm2(this, "norm2", channels) {}

  nn::Conv2d conv1;
  nn::BatchNorm2d norm1;
  nn::Conv2d conv2;
  nn::BatchNorm2d norm2;

 protected:
  // [n, c, h, w] -> [n, c, h, w]
  DTensor Forward(const DTensor& x) override {
    const DTensor y = weft::Relu(norm1(conv1(x)));
    return weft::Relu(x + norm2(conv2(y)));
  }
};

// Step 2: containers. Images of one channel become `features` numbers, and these the scores of `classes`.
class Net : public nn::Module {
 public:
  explicit Net(int64_t classes, int64_t features = 6, int num_blocks = 2)
      : head(this, "head", features, classes, {.weight = weft::XavierUniform()}) {
    stem.Add<nn::Conv2d>(/*in=*/1, features, /*kernel=*/3, nn::Conv2dOptions{.padding = {1, 1}});
    stem.Add<nn::Relu>();
    for (int i = 0; i < num_blocks; ++i) blocks.Append<Block>(features);
    pool.Add<nn::AdaptiveAvgPool2d>();
    pool.Add<nn::Flatten>();
    pool.Add<nn::Dropout>(/*rate=*/0.1);
  }

  nn::Sequential stem{this, "stem"};
  nn::ModuleList blocks{this, "blocks"};
  nn::Sequential pool{this, "pool"};
  nn::Linear head;

 protected:
  // [n, 1, h, w] -> [n, classes]
  DTensor Forward(const DTensor& images) override {
    DTensor x = stem(images);
    for (nn::Module* block : blocks.children()) x = (*block)(x);
    return head(pool(x));
  }
};

// Step 3: what the model is, before it has values.
void ShowSummary() {
  Net net(/*classes=*/2);
  std::printf("%s", weft::Summarize(net).ToTable().c_str());
}

// Step 4: training and evaluation. An image's class says which half of it is the brighter one: 0 the left, 1 the right.
struct Batch {
  DTensor images;
  DTensor classes;
};

Batch MakeBatch(const nn::Module& net, int step) {
  const auto& context = net.context();
  context->state().set_step(step);
  const weft::Layout whole(/*ndim=*/4, context->mesh().num_axes());
  const DTensor x = weft::RandomNormal(context, weft::DType::kF64, {32, 1, 8, 8}, whole, "images");
  const auto half = [&](int64_t start) { return weft::Sum(weft::Slice(x, /*dim=*/3, start, 4), {1, 2, 3}); };
  return {.images = x, .classes = weft::Argmax(weft::Stack({half(0), half(4)}, /*dim=*/1), /*dim=*/1)};
}

double Accuracy(Net& net) {
  const weft::NoGradGuard no_grad(net.context()->state());
  net.Eval();
  const Batch batch = MakeBatch(net, /*step=*/1000);
  const DTensor right = weft::Equal(weft::Argmax(net(batch.images), /*dim=*/1), batch.classes);
  net.Train();
  return weft::Mean(weft::Cast(right, weft::DType::kF64)).Item();
}

void Train(Net& net, int steps) {
  weft::AdamW optimizer(net.TrainableParameters(), {});
  for (int step = 1; step <= steps; ++step) {
    const Batch batch = MakeBatch(net, step);
    weft::Backward(weft::CrossEntropy(net(batch.images), batch.classes).Mean());
    optimizer.Step(/*lr=*/0.02);
    optimizer.ZeroGrad();
  }
  const weft::World& world = net.context()->world();
  const std::string statistics =
      weft::ValuesText(net.blocks.Get<Block>(0).norm1.running_mean->Value(), {.precision = 6});
  const double accuracy = Accuracy(net);
  if (world.rank() == 0)
    std::printf("world of %d: accuracy %.3f, %s", world.size(), accuracy, statistics.c_str());
}

// Step 5: hooks. What each block gives, while they hang.
void ShowSizes(Net& net) {
  std::vector<weft::HookHandle> handles;
  for (nn::Module* block : net.blocks.children()) {
    handles.push_back(block->AddAfterForward([](nn::Module& module, const DTensor& y) {
      const double mean = weft::Mean(y).Item();
      if (y.context()->world().rank() == 0) std::printf("%s: mean %.6f\n", module.path().c_str(), mean);
      return DTensor();  // y as it is
    }));
  }
  const weft::EvaluationGuard evaluation(net.context()->state());
  net(MakeBatch(net, /*step=*/1000).images);
  for (weft::HookHandle& handle : handles) handle.Remove();
}

// Step 6: a trained body under another head, which alone is trained.
void Tune(weft::World& world, const weft::DeviceMesh& mesh, const weft::Plan& plan, const std::string& path) {
  Net net(/*classes=*/3);
  net.set_name("tuned");  // so that its head does not begin with the bits of the first
  weft::Parallelize(net, world, mesh, plan, {.dtype = weft::DType::kF64});
  weft::SafetensorsReader reader(path);
  const auto body = [](const std::string& name) { return name.substr(0, 4) == "head" ? "" : name; };
  const auto result = weft::LoadWeights(reader, net, {.names = {.rename = body}, .strict = false});
  net.set_trainable(false);
  net.head.set_trainable(true);
  if (world.rank() == 0) {
    std::printf("not taken: %s, %s\n", result.unexpected[0].c_str(), result.unexpected[1].c_str());
    std::printf("parameters to train: %zu of %zu\n", net.TrainableParameters().size(),
                net.AllParameters().size());
  }
  Train(net, /*steps=*/10);
}

int main(int argc, char** argv) {
  const std::string path = weft::UserPath(argc > 1 ? argv[1] : "modules.safetensors");
  ShowSummary();
  const auto run = [&](const weft::DeviceMesh& mesh, const weft::Plan& plan) {
    weft::RunRanks(static_cast<int>(mesh.num_ranks()), [&](weft::World& world) {
      Net net(/*classes=*/2);
      weft::Parallelize(net, world, mesh, plan, {.dtype = weft::DType::kF64});
      Train(net, /*steps=*/30);
      ShowSizes(net);
      weft::SaveWeights(path, net);
      Tune(world, mesh, plan, path);
    });
  };
  run({}, {});
  run(weft::DeviceMesh({{"dp", 4}}), {{"blocks.*", weft::FullyShard("dp")}, {"", weft::FullyShard("dp")}});
  run(weft::DeviceMesh({{"dp", 2}, {"tp", 2}}),
      {{"blocks.*.conv1", weft::ColumnParallel("tp")},
       {"blocks.*.norm1", weft::ColumnParallel("tp", {.input = weft::Shard(1)})},
       {"blocks.*.conv2", weft::RowParallel("tp")},
       {"", weft::DataParallel("dp")}});
}

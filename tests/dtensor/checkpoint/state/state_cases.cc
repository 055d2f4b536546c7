#include "tests/dtensor/checkpoint/state/state_cases.h"

#include <chrono>
#include <cstring>

#include "dtensor/checkpoint/state/agreement.h"
#include "dtensor/functions.h"
#include "parallel/parallelize.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

const GptConfig kConfig = {
    .vocabulary = 17, .context = 5, .layers = 4, .heads = 2, .dim = 6, .tied_head = true};

uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

Tensor PieceOf(const StateTensor& tensor, uint64_t seed) {
  const ShardBox box = tensor.tensor.LocalBox();
  const std::vector<char> bytes = BoxBytes(tensor.name, seed, tensor.tensor.dtype(), box);
  const Tensor piece = Tensor::Empty(MakeCpuAllocator(), tensor.tensor.dtype(), box.shape);
  if (!bytes.empty()) std::memcpy(piece.data(), bytes.data(), bytes.size());
  return piece;
}

std::vector<StateTensor> TensorsIn(const State& state) {
  std::vector<StateTensor> tensors;
  for (const auto& [name, part] : state.parts()) {
    for (StateTensor& tensor : part->Tensors()) tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace

int SpreadCase::num_ranks() const { return static_cast<int>(DeviceMesh::Parse(mesh).num_ranks()); }

const std::vector<SpreadCase>& SpreadCases() {
  static const auto* const cases = new std::vector<SpreadCase>{
      {"one rank", "", {}},
      {"ddp", "dp=2", {{"", DataParallel("dp")}}},
      {"zero1", "dp=3", {{"", DataParallel("dp", {.shard_state = true})}}},
      {"zero2", "dp=2", {{"", DataParallel("dp", {.shard_gradient = true})}}},
      {"fsdp", "dp=4", {{"blocks.*", FullyShard("dp")}, {"", FullyShard("dp")}}},
      {"fsdp and tp",
       "dp=2, tp=2",
       {{"wte", VocabParallel("tp")},
        {"blocks.*.mlp.up", ColumnParallel("tp")},
        {"blocks.*.mlp.down", RowParallel("tp")},
        {"", FullyShard("dp")}}},
      {"hsdp", "replica=2, shard=2", {{"", FullyShard("shard")}, {"", DataParallel("replica")}}},
      {"two stages", "pp=2, dp=2", {{"blocks.*", Pipeline("pp")}, {"", FullyShard("dp")}}},
      {"three stages", "pp=3", {{"blocks.*", Pipeline("pp")}}},
      {"two stages a rank", "pp=2", {{"blocks.*", Pipeline("pp", {.chunks = 2})}}},
      {"two stages a rank, in a V",
       "pp=2, dp=2",
       {{"blocks.*", Pipeline("pp", {.chunks = 2, .order = StageOrder::kV})}, {"", DataParallel("dp")}}},
  };
  return *cases;
}

TestRun::TestRun(World& world, const SpreadCase& spread, DType dtype) : model(kConfig) {
  const DeviceMesh mesh = DeviceMesh::Parse(spread.mesh);
  context = Parallelize(model, world, mesh, spread.plan, {.dtype = dtype});
  optimizer = std::make_unique<AdamW>(model.AllParameters(), AdamWOptions());
  average = std::make_unique<WeightAverage>(model.AllParameters(), WeightAverageOptions{.decay = 0.5});
  loss_scale = std::make_unique<LossScale>(context);
  state.Add("model", MakeModelState(model));
  state.Add("optimizer", MakeOptimizerState(*optimizer));
  state.Add("average", MakeTensorState([this] { return average->State(); }));
  state.Add("loss_scale", MakeTensorState([this] { return loss_scale->State(); }));
}

std::shared_ptr<StatePart> TensorsPart(std::vector<std::pair<std::string, DTensor>> tensors) {
  return MakeTensorState([tensors] { return tensors; });
}

void OnFirst(World& world, const std::function<void()>& function) {
  Agreement agreement(world, std::chrono::minutes(1));
  agreement.Agree({.part = [&] { return world.rank() == 0 ? (function(), "") : ""; }});
}

State SmallState(World& world, int num_ranks) {
  const auto context = Bind(world, DeviceMesh({{"dp", num_ranks}}));
  const DTensor split = DTensor::Distribute(context, Tensor::FromValues<float>({5}, std::vector<float>(5)),
                                            Layout(1, 1).WithShard(0, 0));
  const DTensor whole = Full(context, DType::kI64, {2}, 0);
  State state;
  state.Add("tensors", MakeTensorState([split, whole] {
              return std::vector<std::pair<std::string, DTensor>>{{"split", split}, {"whole", whole}};
            }));
  return state;
}

std::vector<char> BoxBytes(const std::string& name, uint64_t seed, DType dtype, const ShardBox& box) {
  uint64_t key = Mix(seed);
  for (const char c : name) key = Mix(key ^ static_cast<unsigned char>(c));
  const int64_t item_size = ItemSize(dtype);
  std::vector<char> bytes(static_cast<size_t>(box.shape.num_elements() * item_size));
  for (int64_t i = 0; i < box.shape.num_elements(); ++i) {
    int64_t rest = i, position = 0, stride = 1;
    for (int dim = box.shape.ndim() - 1; dim >= 0; --dim) {
      position += (box.offset[dim] + rest % box.shape[dim]) * stride;
      rest /= box.shape[dim];
      stride *= box.global_shape[dim];
    }
    const uint64_t bits = Mix(key + static_cast<uint64_t>(position));
    std::memcpy(bytes.data() + i * item_size, &bits, static_cast<size_t>(item_size));
  }
  return bytes;
}

void FillTensorOf(const StateTensor& tensor, uint64_t seed) {
  CopyTensor(PieceOf(tensor, seed), tensor.tensor.ToLocal());
  tensor.tensor.impl()->MarkWritten("test");
}

void FillState(const State& state, uint64_t seed) {
  for (const StateTensor& tensor : TensorsIn(state)) FillTensorOf(tensor, seed);
}

int64_t CountWrongBytes(const State& state, uint64_t seed) {
  int64_t wrong = 0;
  for (const StateTensor& tensor : TensorsIn(state)) {
    const Tensor expected = PieceOf(tensor, seed), actual = OnHost(tensor.tensor.ToLocal());
    const char *a = static_cast<const char*>(actual.data()), *b = static_cast<const char*>(expected.data());
    for (int64_t i = 0; i < expected.num_bytes(); ++i) wrong += a[i] != b[i];
  }
  return wrong;
}

int64_t WholeBytes(DType dtype) {
  int64_t total = 0;
  RunRanks(1, [&](World& world) {
    const TestRun run(world, SpreadCases()[0], dtype);
    for (const StateTensor& tensor : TensorsIn(run.state)) {
      total += tensor.tensor.shape().num_elements() * ItemSize(tensor.tensor.dtype());
    }
  });
  return total;
}

}  // namespace weft

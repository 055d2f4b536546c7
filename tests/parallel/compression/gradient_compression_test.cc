// Buckets of methods: sums that fail, which of them is the last, and what random bits groups have.

#include "parallel/compression/gradient_compression.h"

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "mesh/device_mesh.h"
#include "parallel/compression/sum_levels.h"
#include "runtime/base/error.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using testing::Each;
using testing::ElementsAre;

// The exact sum, behind a task that fails in one round. What is kept counts rounds: 10 ROUND + 1 before the sum, + 2 a while
// later.
class Failing final : public Compressor {
 public:
  explicit Failing(double round) : round_(static_cast<uint64_t>(round)) {}
  std::vector<CompressorState> State(const Shape&) const override { return {{.name = "count"}}; }

  Work Reduce(const std::shared_ptr<GradientBucket>& bucket) const override {
    const Tensor count = bucket->parts()[0].state[0], gradient = bucket->parts()[0].gradient;
    const auto round = static_cast<double>(bucket->round());
    bucket->Run([count, round, fails = bucket->round() == round_] {
      FillTensor(count, 10 * round + 1);
      if (fails) Throw(absl::StatusCode::kInternal, "this round fails");
    });
    bucket->Add(bucket->group().AllReduce(gradient, gradient, ReduceOp::kSum, bucket->options()));
    bucket->Run([count, round] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      FillTensor(count, 10 * round + 2);
    });
    return bucket->works().back();
  }

 private:
  const uint64_t round_;
};
const RegisterCompressor kRegister({
    .name = "failing",
    .arguments = {{.name = "round", .is_required = true}},
    .make = [](const CommunicationMethod& method) -> std::unique_ptr<Compressor> {
      return std::make_unique<Failing>(method.Get("round"));
    },
});

CompressedLeaf LeafOf(const std::string& path, const std::string& method, const Shape& shape,
                      const Layout& layout, const AxisList& axes) {
  return {.path = path,
          .type = {DType::kF64, shape},
          .layout = layout,
          .communication = {CommunicationMethod::Parse(method), axes}};
}

// One gradient over two ranks, round after round.
class OneGradient {
 public:
  OneGradient(World& world, const std::string& method)
      : context_(Bind(world, DeviceMesh::Parse("dp=2"))),
        compression_(GradientCompression::Make(*context_, {LeafOf("w", method, {3}, Layout(1, 1), {0})})) {}

  // Of ranks' terms that are all `term`.
  std::vector<double> Sum(double term) {
    const Tensor piece = Tensor::FromValues<double>({3}, {term, term, term});
    const Layout arriving = Layout(1, 1).WithPartial(0);
    std::vector<ArrivedGradient> gradients;
    gradients.push_back(
        {0, DTensor::FromLocal(context_, CloneTensor(piece, context_->allocator()), arriving, {3})});
    const DTensor sum = compression_->Reduce(std::move(gradients), Lane::kGrad, Lane::kReplica)[0];
    compression_->EndPass();
    return sum.ToLocal().ToVector<double>();
  }
  std::vector<double> Kept() { return compression_->State()[0].tensor.ToLocal().ToVector<double>(); }
  GradientCompression& compression() { return *compression_; }

 private:
  const IntrusivePtr<MeshContext> context_;
  const std::unique_ptr<GradientCompression> compression_;
};

constexpr char kFailure[] = "this round fails";

TEST(GradientCompressionTest, AScaledStepWhoseSumFailsIsForgotten) {
  for (const bool ends : {true, false}) {
    RunRanks(2, [ends](World& world) {
      OneGradient gradient(world, "failing(1)");
      GradientCompression& compression = gradient.compression();
      compression.BeginScaledStep(4);
      EXPECT_THAT(gradient.Sum(4), Each(8));
      compression.EndScaledStep(/*applied=*/true);
      EXPECT_THAT(gradient.Kept(), Each(2));
      compression.BeginScaledStep(4);
      EXPECT_EQ(MessageOf([&] { gradient.Sum(4); }), kFailure);
      EXPECT_THAT(gradient.Kept(), Each(2));
      if (ends) compression.EndScaledStep(/*applied=*/false);
      EXPECT_THAT(gradient.Kept(), Each(2));
      compression.BeginScaledStep(8);
      EXPECT_THAT(gradient.Kept(), Each(2));
      EXPECT_THAT(gradient.Sum(8), Each(16));
      compression.EndScaledStep(/*applied=*/true);
      EXPECT_THAT(gradient.Kept(), Each(22));
      EXPECT_THAT(gradient.Sum(1), Each(2));  // no scale is left
    });
  }
}

// Without a scale nothing is taken back; the error is told once.
TEST(GradientCompressionTest, AnErrorOfASumIsToldOnce) {
  RunRanks(2, [](World& world) {
    OneGradient gradient(world, "failing(0)");
    EXPECT_EQ(MessageOf([&] { gradient.Sum(1); }), kFailure);
    EXPECT_EQ(MessageOf([&] { gradient.Kept(); }), kFailure);
    EXPECT_THAT(gradient.Kept(), Each(2));
    gradient.compression().BeginScaledStep(2);
    EXPECT_THAT(gradient.Sum(2), Each(4));
    gradient.compression().EndScaledStep(/*applied=*/false);
    EXPECT_THAT(gradient.Kept(), Each(2));
  });
  RunRanks(2, [](World& world) {  // and not to who writes over what is kept
    OneGradient gradient(world, "failing(0)");
    EXPECT_EQ(MessageOf([&] { gradient.Sum(1); }), kFailure);
    EXPECT_EQ(gradient.compression().StateToLoad().size(), 1u);
    EXPECT_THAT(gradient.Kept(), Each(2));
  });
}

// The sums of one Reduce are issued by method, in the order of their first gradients.
TEST(GradientCompressionTest, FirstSumsEndWithTheLastIssued) {
  RunRanks(2, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
    std::vector<CompressedLeaf> leaves;
    for (const std::string method : {"bf16", "int8", "bf16"}) {
      leaves.push_back(LeafOf("w" + std::to_string(leaves.size()), method, {3}, Layout(1, 1), {0}));
    }
    const auto compression = GradientCompression::Make(*context, leaves);
    for (const Lane lane : {Lane::kGrad, Lane::kInline}) {
      std::vector<ArrivedGradient> gradients;
      for (int leaf = 0; leaf < 3; ++leaf) {
        const Tensor term = Tensor::FromValues<double>({3}, {1, 2, 3});
        gradients.push_back({leaf, DTensor::FromLocal(context, CloneTensor(term, context->allocator()),
                                                      Layout(1, 1).WithPartial(0), {3})});
      }
      const std::vector<DTensor> sums = compression->Reduce(std::move(gradients), lane, lane);
      compression->EndPass();
      EXPECT_EQ(compression->first_sums().get(), sums[1].impl()->pending().get());
      EXPECT_EQ(compression->first_sums() != nullptr, lane == Lane::kGrad);
      for (const DTensor& sum : sums) sum.ToLocal();
    }
  });
}

// What rank by rank stands for the random bits of a level.
std::vector<std::string> Streams(const std::string& mesh_text, const Layout& layout, const AxisList& axes,
                                 int level) {
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  std::vector<std::string> streams(mesh.num_ranks());
  RunRanks(static_cast<int>(mesh.num_ranks()), [&](World& world) {
    const auto context = Bind(world, mesh);
    const CompressedLeaf leaf = LeafOf("w", "int8", {8}, layout, axes);
    const std::vector<SumLevel> levels = SumLevelsOf(leaf, mesh);
    streams[world.rank()] = StreamPathOf(*context, leaf, levels.at(level), level);
  });
  return streams;
}

TEST(GradientCompressionTest, GroupsDoNotShareRandomBits) {
  const Layout whole(1, 2), split = whole.WithShard(/*axis=*/1, /*dim=*/0);
  const auto expect = [](const std::vector<std::string>& streams, const std::vector<int>& groups) {
    ASSERT_EQ(streams.size(), groups.size());
    for (size_t i = 0; i < groups.size(); ++i) {
      for (size_t j = 0; j < i; ++j) EXPECT_EQ(streams[i] == streams[j], groups[i] == groups[j]) << i << j;
    }
  };
  // The same number: a group.
  expect(Streams("replica=2,shard=2", split, {0, 1}, /*level=*/0), {0, 0, 1, 1});
  expect(Streams("replica=2,shard=2", split, {0, 1}, /*level=*/1), {0, 1, 0, 1});
  expect(Streams("dp=2,tp=2", split, {0}, /*level=*/0), {0, 1, 0, 1});
  // Two groups, which have to get the same bits: both have the parameter whole.
  expect(Streams("dp=2,tp=2", whole, {0}, /*level=*/0), {0, 0, 0, 0});
  EXPECT_EQ(Streams("dp=2,tp=1", split, {0}, 0), Streams("dp=2,tp=1", whole, {0}, 0));
}

// Two tensor-parallel pieces of the same values are not rounded alike.
TEST(GradientCompressionTest, PiecesAreNotRoundedAlike) {
  std::map<int, std::vector<double>> sums;
  std::mutex mutex;
  RunRanks(4, [&](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=2,tp=2"));
    const Layout layout = Layout(1, 2).WithShard(/*axis=*/1, /*dim=*/0);
    const auto compression = GradientCompression::Make(*context, {LeafOf("w", "int8", {512}, layout, {0})});
    std::vector<double> values(256);
    for (size_t i = 0; i < values.size(); ++i) values[i] = 0.001 * static_cast<double>(i * i % 251);
    const Tensor term = CloneTensor(Tensor::FromValues<double>({256}, values), context->allocator());
    std::vector<ArrivedGradient> gradients;
    gradients.push_back({0, DTensor::FromLocal(context, term, layout.WithPartial(0), {512})});
    const DTensor sum = compression->Reduce(std::move(gradients), Lane::kInline, Lane::kInline)[0];
    const std::lock_guard<std::mutex> lock(mutex);
    sums[world.rank()] = sum.ToLocal().ToVector<double>();
  });
  EXPECT_EQ(sums[0], sums[2]);
  EXPECT_EQ(sums[1], sums[3]);
  EXPECT_NE(sums[0], sums[1]);
}

}  // namespace
}  // namespace weft

// What a watchdog says where one rank of a training stands still: the bucket of gradients that the others wait for, by its
// number and the modules that it goes from and to, and what the stalled rank is in.

#include <algorithm>
#include <memory>
#include <random>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/call/call_observer.h"
#include "dtensor/functions.h"
#include "dtensor/nn/gpt.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/scheduler/bucket_name.h"
#include "parallel/styles.h"
#include "runtime/launch/run_ranks.h"
#include "tests/runtime/launch/hangs/told.h"

namespace weft {
namespace {

constexpr int kRanks = 3;
constexpr GptConfig kConfig = {.vocabulary = 16, .context = 6, .layers = 3, .heads = 2, .dim = 8};

// The owners of parameters in the order in which backward completes their gradients, from the model's definition: its
// segments from the last, of a block the halves from the second.
std::vector<std::string> Arrivals() {
  std::vector<std::string> owners = {"head", "ln_f"};
  for (int64_t block = kConfig.layers - 1; block >= 0; --block) {
    for (const char* module : {"mlp.down", "mlp.up", "ln_2", "attn.proj", "attn.qkv", "ln_1"}) {
      owners.push_back(absl::StrCat("blocks.", block, ".", module));
    }
  }
  owners.push_back("wte");
  owners.push_back("wpe");
  return owners;
}

// What the buckets of the last pass were called, in the order of issue.
std::vector<std::string> BucketsIssued(MeshContext& context) {
  std::vector<std::string> names;
  for (const LedgerEntry& entry : context.world().ledger().entries()) {
    // One that is older adds its time when it ends.
    if (entry.tag.purpose != static_cast<uint8_t>(Purpose::kGrad) || entry.calls == 0) continue;
    names.push_back(context.state().PathName(entry.tag.path_id));
  }
  return names;
}

struct Training {
  explicit Training(World& world) : model(kConfig) {
    Plan plan = {{"", DataParallel("dp")}};
    plan.set_scheduler({.bucket_mb = 0.005});
    const DeviceMesh mesh({{"dp", kRanks}});
    context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
    const Tensor ones = Tensor::FromValues<int32_t>({kRanks, 5}, std::vector<int32_t>(kRanks * 5, 1));
    tokens = DTensor::Distribute(context, ones, Layout(2, 1).WithShard(/*axis=*/0, /*dim=*/0));
  }
  // No collective but those of the buckets.
  void Pass() { Backward(Mean(Square(model(tokens)))); }
  std::vector<DTensor> Gradients() {
    std::vector<DTensor> gradients;
    for (const Parameter* parameter : model.AllParameters()) gradients.push_back(parameter->grad());
    return gradients;
  }

  Gpt model;
  IntrusivePtr<MeshContext> context;
  DTensor tokens;
};

TEST(BucketNameTest, IsItsNumberAndTheModulesOfItsFirstAndLast) {
  EXPECT_EQ(BucketName(0, {"head.weight"}), "gradient bucket 0, of head");
  EXPECT_EQ(BucketName(2, {"mlp.up.weight", "mlp.up.bias"}), "gradient bucket 2, of mlp.up");
  EXPECT_EQ(BucketName(13, {"a.b.weight", "a.c", "wpe"}), "gradient bucket 13, from a.b to wpe");
  EXPECT_EQ(CommonPath({"blocks.0.attn.qkv.weight", "blocks.0.attn.proj.bias"}), "blocks.0.attn");
  EXPECT_EQ(CommonPath({"blocks.0.w", "head.w"}), "");
}

// From one to the next, over all parameters in the order of arrival.
TEST(AwaitedBucketTest, NamesTellWhichGradientsABucketHas) {
  RunRanks(kRanks, [](World& world) {
    Training training(world);
    training.Pass();
    const std::vector<std::string> names = BucketsIssued(*training.context);
    const std::vector<std::string> owners = Arrivals();
    EXPECT_GE(names.size(), 5u);
    size_t next = 0;
    bool is_of_several_blocks = false;
    for (size_t i = 0; i < names.size(); ++i) {
      const std::string prefix = absl::StrCat("gradient bucket ", i, ", ");
      ASSERT_TRUE(absl::StartsWith(names[i], prefix)) << names[i];
      const std::vector<std::string> words = absl::StrSplit(names[i].substr(prefix.size()), ' ');
      ASSERT_TRUE(words.size() == 2 || words.size() == 4) << names[i];
      const auto first = std::find(owners.begin(), owners.end(), words[1]);
      const auto last = std::find(owners.begin(), owners.end(), words.back());
      ASSERT_TRUE(first <= last && last != owners.end()) << names[i];
      // A module's own parameters may be in two buckets.
      const auto from = static_cast<size_t>(first - owners.begin());
      EXPECT_TRUE(from == next || from + 1 == next) << names[i] << " does not begin at " << owners[next];
      next = static_cast<size_t>(last - owners.begin()) + 1;
      is_of_several_blocks |= absl::StartsWith(words[1], "blocks.") &&
                              absl::StartsWith(words.back(), "blocks.") && words[1][7] != words.back()[7];
    }
    EXPECT_EQ(next, owners.size());
    EXPECT_TRUE(is_of_several_blocks);
  });
}

struct Stall {
  int rank = 0;
  bool backward = false;
  int block = 0;
  bool reads_last_first = false;  // the others wait for the last bucket first
};

// Stands still at the first call of an op of a block, until the others' wait has been told.
class Staller final : public CallObserver {
 public:
  Staller(MeshContext& context, const Stall& stall, std::vector<std::string> buckets, const Told& told)
      : context_(context), stall_(stall), buckets_(std::move(buckets)), told_(told) {}

  void OnCall(const ErasedCall& /*call*/, const ResolvedCall& /*plan*/) override {
    const RankState& state = context_.state();
    const std::string& place = state.PathName(state.path_id());
    const bool is_there = state.in_backward() == stall_.backward &&
                          absl::StartsWith(place, absl::StrCat("blocks.", stall_.block, "."));
    if (!is_there || std::exchange(has_stalled_, true)) return;
    const size_t next = BucketsIssued(context_).size();
    const std::string awaited = buckets_[stall_.reads_last_first ? buckets_.size() - 1 : next];
    const bool is_queued = awaited != buckets_[next];
    const std::string others = stall_.rank == 0   ? "ranks 1, 2"
                               : stall_.rank == 1 ? "ranks 0, 2"
                                                  : "ranks 0, 1";
    const std::string expected = absl::StrCat(
        "weft: waiting: ", others, " wait for CALL on axis dp (", awaited, ", grad), issued T s ago",
        is_queued ? absl::StrCat(", queued behind CALL on axis dp (", buckets_[next], ", grad)") : "",
        "; rank ", stall_.rank, " has not issued ", is_queued ? "that" : "it", ": it is in ",
        stall_.backward ? "backward" : "forward", " of ", place);
    const std::regex call("all_reduce\\([^)]*\\) #[0-9]+");
    const bool is_told = told_.Await(
        [&](const std::string& line) { return std::regex_replace(line, call, "CALL") == expected; });
    EXPECT_TRUE(is_told) << "expected\n" << expected << "\ntold\n" << told_.Text();
  }

  bool has_stalled() const { return has_stalled_; }

 private:
  MeshContext& context_;
  const Stall stall_;
  const std::vector<std::string> buckets_;
  const Told& told_;
  bool has_stalled_ = false;
};

void TrainWith(World& world, const Stall& stall, const Told& told) {
  Training training(world);
  training.Pass();  // learns the order
  const std::vector<std::string> buckets = BucketsIssued(*training.context);
  for (const DTensor& gradient : training.Gradients()) gradient.ToLocal();
  for (Parameter* parameter : training.model.AllParameters()) parameter->ClearGrad();
  world.ledger().Clear();
  Staller staller(*training.context, stall, buckets, told);
  {
    const CallObserverGuard guard(training.context->state(), world.rank() == stall.rank ? &staller : nullptr);
    training.Pass();
  }
  EXPECT_EQ(staller.has_stalled(), world.rank() == stall.rank);
  // The model has its parameters in the order of forward.
  std::vector<DTensor> gradients = training.Gradients();
  if (!stall.reads_last_first) std::reverse(gradients.begin(), gradients.end());
  for (const DTensor& gradient : gradients) gradient.ToLocal();
}

TEST(AwaitedBucketTest, TheBucketAndTheStalledRanksModuleAreNamedWhereverItStalls) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const Stall stall = {.rank = static_cast<int>(random() % kRanks),
                         .backward = random() % 3 != 0,
                         .block = static_cast<int>(random() % kConfig.layers),
                         .reads_last_first = random() % 2 == 0};
    SCOPED_TRACE(absl::StrCat("rank ", stall.rank, stall.backward ? ", backward" : ", forward", " of block ",
                              stall.block));
    Told told;
    RunRanks(kRanks, [&](World& world) { TrainWith(world, stall, told); },
             {.threads_per_rank = 1, .watchdog = told.Options()});
  }
}

}  // namespace
}  // namespace weft

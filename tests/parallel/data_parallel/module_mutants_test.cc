// Do the comparisons with one rank see mistakes inside modules: norms over channels, dropout, convolutions, tied parameters?
// Without a mistake a net of them is that of one rank under every plan; each of the mistakes that are known from data and
// tensor parallelism written by hand must make a difference.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "dtensor/functions.h"
#include "dtensor/nn/embedding.h"
#include "dtensor/nn/layers/layers.h"
#include "dtensor/nn/linear.h"
#include "gtest/gtest.h"
#include "parallel/styles.h"
#include "tests/parallel/data_parallel/claim.h"
#include "tests/parallel/training_run.h"

namespace weft {
namespace {

constexpr int64_t kVocabulary = 29;
constexpr int64_t kChannels = 12;

enum class Mistake {
  kNone,
  kOwnBatchStatistics,    // a batch norm that asks no other rank, as PyTorch's BatchNorm under its DDP
  kOwnChannelStatistics,  // a norm over channels that sees those of its rank alone
  kDropsAlike,            // every rank drops the places that the first rank does
  kTiedOnce,              // of a tied parameter's two uses, one gives a gradient
};

// The mean over `dims` of this rank's piece, which it takes for that of the whole.
DTensor OwnMean(const DTensor& x, const std::vector<int>& dims) {
  const DTensor sum = Sum(x, dims, /*keep_dims=*/true);
  Layout claimed = sum.layout();
  for (int axis : sum.layout().PartialAxes()) claimed = claimed.WithReplicate(axis);
  const double count =
      static_cast<double>(x.ToLocal().num_elements()) / static_cast<double>(sum.ToLocal().num_elements());
  return Claim(sum, claimed, sum.ToLocal()) * (1 / count);
}

// What norms over channels compute, by the statistics of this rank's piece. x [b, c, s].
DTensor NormalizeByOwn(const DTensor& x, const std::vector<int>& dims, Parameter& weight, Parameter& bias) {
  const DTensor centred = x - OwnMean(x, dims);
  const DTensor normal = centred * Rsqrt(OwnMean(centred * centred, dims) + 1e-5);
  return normal * Reshape(weight.Value(), {kChannels, 1}) + Reshape(bias.Value(), {kChannels, 1});
}

// Drops, of each rank's piece, the places that it would drop of a whole as large.
DTensor DropAlike(const DTensor& x, double rate) {
  const DTensor mask = Dropout(Ones(x.context(), x.dtype(), x.ToLocal().shape()), rate);
  return x * Claim(Ones(x.context(), x.dtype(), x.shape()), x.layout(), mask.ToLocal());
}

// tokens [b, s] -> logits [b, s, v], by way of channels [b, c, s].
class ChannelNet : public Module {
 public:
  explicit ChannelNet(Mistake mistake) : mistake_(mistake) {
    head.weight.TieTo(embedding.weight, /*transposed=*/true);
  }

  Embedding embedding{this, "embedding", kVocabulary, 8};
  nn::Conv1d conv{this, "conv", 8, kChannels, 3, {.padding = 1}};
  BatchNorm1d batch_norm{this, "batch_norm", kChannels};
  GroupNorm group_norm{this, "group_norm", 1, kChannels};
  Linear down{this, "down", kChannels, 8};
  Linear head{this, "head", 8, kVocabulary, {.bias = false}};

 protected:
  DTensor Forward(const DTensor& tokens) override {
    DTensor x = conv(Transpose(embedding(tokens), 1, 2));
    if (mistake_ == Mistake::kOwnBatchStatistics) {
      x = NormalizeByOwn(x, {0, 2}, *batch_norm.weight, *batch_norm.bias);
    } else {
      x = batch_norm(x);
    }
    x = Gelu(mistake_ == Mistake::kDropsAlike ? DropAlike(x, 0.2) : Dropout(x, 0.2));
    if (mistake_ == Mistake::kOwnChannelStatistics) {
      x = NormalizeByOwn(x, {1, 2}, group_norm.weight, group_norm.bias);
    } else {
      x = group_norm(x);
    }
    x = down(Transpose(x, 1, 2));
    return mistake_ == Mistake::kTiedOnce ? MatMul(x, head.weight.Value().Detach()) : head(x);
  }

 private:
  const Mistake mistake_;
};

const StyleBorders kSplitChannels = {.input = Shard(1)};

// The net over axes "dp" and "tp" of the mesh.
TrainingRun RunOf(Mistake mistake, const std::string& mesh, const Style& data = DataParallel("dp")) {
  TrainingRun run;
  run.make_model = [mistake] { return std::make_unique<ChannelNet>(mistake); };
  run.mesh = DeviceMesh::Parse(mesh);
  if (absl::StrContains(mesh, "tp")) {
    run.plan = {{"conv", ColumnParallel("tp")},
                {"batch_norm", ColumnParallel("tp", kSplitChannels)},
                {"group_norm", ColumnParallel("tp", kSplitChannels)},
                {"down", RowParallel("tp")}};
  }
  if (absl::StrContains(mesh, "dp")) run.plan = run.plan.Merge({{"", data}});
  run.vocabulary = kVocabulary;
  run.batch = 5;
  run.steps = 2;
  run.gradient_steps = {1, 2};
  return run;
}

std::vector<std::string> Verdict(const TrainingRun& run) {
  static const TrainingResult one_rank = Train(RunOf(Mistake::kNone, ""));
  return Differences(one_rank, Train(run), kF64Tolerance);
}

TEST(ModuleMutantsTest, WithoutAMistakeTheNetIsThatOfOneRank) {
  for (const char* mesh : {"dp=2", "dp=4", "tp=2", "dp=2,tp=2"}) {
    for (const Style& data : {DataParallel("dp"), FullyShard("dp")}) {
      EXPECT_EQ(absl::StrJoin(Verdict(RunOf(Mistake::kNone, mesh, data)), "\n"), "") << mesh;
    }
  }
}

TEST(ModuleMutantsTest, OnOneRankTheMistakesAreNone) {
  for (Mistake mistake :
       {Mistake::kOwnBatchStatistics, Mistake::kOwnChannelStatistics, Mistake::kDropsAlike}) {
    EXPECT_EQ(absl::StrJoin(Verdict(RunOf(mistake, "")), "\n"), "");
  }
}

// What stands behind a mistake sees it, and all gradients do.
void ExpectSeen(const TrainingRun& run) {
  const std::vector<std::string> verdict = Verdict(run);
  const auto mentions = [&](absl::string_view what) {
    return std::any_of(verdict.begin(), verdict.end(),
                       [&](const std::string& line) { return absl::StartsWith(line, what); });
  };
  EXPECT_TRUE(mentions("loss of step 1")) << absl::StrJoin(verdict, "\n");
  EXPECT_TRUE(mentions("gradient of conv.weight after step 1")) << absl::StrJoin(verdict, "\n");
}

TEST(ModuleMutantsTest, BatchStatisticsOfOwnRows) {
  ExpectSeen(RunOf(Mistake::kOwnBatchStatistics, "dp=2"));
  ExpectSeen(RunOf(Mistake::kOwnBatchStatistics, "dp=4", FullyShard("dp")));
}

TEST(ModuleMutantsTest, StatisticsOfOwnChannels) {
  ExpectSeen(RunOf(Mistake::kOwnChannelStatistics, "tp=2"));
  ExpectSeen(RunOf(Mistake::kOwnChannelStatistics, "dp=2,tp=2"));
  // Where channels are whole there is nothing to ask for.
  EXPECT_EQ(Verdict(RunOf(Mistake::kOwnChannelStatistics, "dp=2")), std::vector<std::string>());
}

TEST(ModuleMutantsTest, EveryRankDropsTheSamePlaces) {
  ExpectSeen(RunOf(Mistake::kDropsAlike, "dp=2"));
  ExpectSeen(RunOf(Mistake::kDropsAlike, "tp=2"));
}

TEST(ModuleMutantsTest, OneUseOfATiedParameterGivesAGradient) {
  const std::vector<std::string> verdict = Verdict(RunOf(Mistake::kTiedOnce, "dp=2"));
  const auto of_embedding = [](const std::string& line) {
    return absl::StartsWith(line, "gradient of embedding.weight after step 1");
  };
  EXPECT_TRUE(std::any_of(verdict.begin(), verdict.end(), of_embedding)) << absl::StrJoin(verdict, "\n");
}

}  // namespace
}  // namespace weft

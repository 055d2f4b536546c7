// Methods where ranks own pieces of sums, uneven and empty ones among them, against numbers worked out here in f64.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "parallel/compression/communication_method.h"
#include "parallel/compression/compressor.h"
#include "tests/parallel/compression/summed_gradients.h"

namespace weft {
namespace {

constexpr const char* kMethods[] = {"bf16",         "f16",         "int8",
                                    "int8(64)",     "onebit",      "topk(0.05)",
                                    "randomk(0.1)", "powersgd(2)", "powersgd(1, min_compression_rate=0.5)"};

// A program's own method, which knows of no pieces: an all-reduce, in f64 or f32 as it comes.
class AllReduced final : public Compressor {
 public:
  std::vector<CompressorState> State(const Shape&) const override { return {}; }
  Work Reduce(const std::shared_ptr<GradientBucket>& bucket) const override {
    for (const GradientPart& part : bucket->parts()) {
      bucket->Add(bucket->group().AllReduce(part.gradient, part.gradient, ReduceOp::kSum, bucket->options()));
    }
    return bucket->works().empty() ? Work() : bucket->works().back();
  }
};
const RegisterCompressor kRegister({
    .name = "users_all_reduce",
    .make = [](const CommunicationMethod&) -> std::unique_ptr<Compressor> {
      return std::make_unique<AllReduced>();
    },
});

// Ranks, and of how many replicas of the pieces.
struct Ranks {
  int count = 2;
  int replicas = 1;
};
constexpr Ranks kRanks[] = {{2}, {3}, {4}, {4, 2}, {6, 2}, {6, 3}};

std::string TextOf(const Ranks& ranks) { return absl::StrCat(ranks.count, " / ", ranks.replicas); }

SummedGradients RunOf(const std::string& method, const Ranks& ranks) {
  return {.method = method, .num_ranks = ranks.count, .scatters = true, .num_replicas = ranks.replicas};
}

TEST(ReduceScatterTest, NothingIsLost) {
  for (const std::string method : kMethods) {
    for (const Ranks& ranks : kRanks) {
      SummedGradients run = RunOf(method, ranks);
      run.steps = 10;
      EXPECT_LE(Lost(run), 1e-12) << method << " over " << TextOf(ranks);
    }
    SummedGradients means = RunOf(method, {4, 2});
    means.steps = 7;
    means.average = true;
    EXPECT_LE(Lost(means), 1e-12) << method << ", of means";
    SummedGradients narrow = RunOf(method, {3});
    narrow.steps = 7;
    narrow.dtype = DType::kF32;
    EXPECT_LE(Lost(narrow), 1e-5) << method << " in f32";
  }
}

// The mutant: the same without error feedback.
TEST(ReduceScatterTest, WithoutErrorFeedbackSomethingIs) {
  for (const std::string method : kMethods) {
    CommunicationMethod without = CommunicationMethod::Parse(method);
    without.arguments["error_feedback"] = 0;
    for (const Ranks& ranks : {Ranks{3}, Ranks{4, 2}}) {
      SummedGradients run = RunOf(without.ToString(), ranks);
      run.steps = 10;
      EXPECT_GE(Lost(run), 1e-4) << without << " over " << TextOf(ranks);
    }
  }
}

// Of a scaled step what is kept is in units of the gradient, whatever the scale; one that is not applied leaves it.
TEST(ReduceScatterTest, NothingIsLostUnderAScaleThatChanges) {
  for (const std::string method : kMethods) {
    for (const Ranks& ranks : {Ranks{3}, Ranks{4, 2}}) {
      for (const bool scatters : {true, false}) {
        SummedGradients run = RunOf(method, ranks);
        run.scatters = scatters;
        run.steps = 9;
        run.scale = [](int64_t step) { return step < 3 ? 65536 : step < 6 ? 3e4 : 0.7; };
        run.skips = [](int64_t step) { return step == 2 || step == 3 || step == 7; };
        EXPECT_LE(Lost(run), 1e-12) << method << " over " << TextOf(ranks);
      }
    }
  }
}

// By powers of two, all that is finite and not too small has the bits that it has without.
TEST(ReduceScatterTest, AScaleOfPowersOfTwoIsNotSeen) {
  for (const std::string method : kMethods) {
    SummedGradients run = RunOf(method, {4, 2});
    run.steps = 5;
    const GradientSums plain = SumGradients(run);
    run.scale = [](int64_t step) { return std::ldexp(1.0, 10 + static_cast<int>(step)); };
    GradientSums scaled = SumGradients(run);
    for (int64_t step = 0; step < run.steps; ++step) {
      for (std::vector<double>& of_leaf : scaled.sums[step]) {
        for (double& value : of_leaf) value /= run.scale(step);
      }
    }
    EXPECT_EQ(scaled.sums, plain.sums) << method;
    EXPECT_EQ(scaled.state, plain.state) << method;
  }
}

// One rank's overflow, in a step that is not applied: residuals and all else stay as they were, on every rank.
TEST(ReduceScatterTest, AnOverflowInAScaledStepLeavesWhatIsKept) {
  for (const std::string method : {"bf16", "int8", "onebit", "topk(0.05, momentum=0.5)", "randomk(0.1)",
                                   "powersgd(2, error_feedback=false)", "powersgd(2)"}) {
    SummedGradients run = RunOf(method, {4, 2});
    run.steps = 3;
    run.scale = [](int64_t) { return 1024; };
    const GradientSums before = SumGradients(run);
    run.steps = 5;
    run.skips = [](int64_t step) { return step >= 3; };
    run.term = [](int rank, int leaf, int64_t step, int64_t i) {
      const bool is_bad = rank == 1 && leaf == 4 && step == 3 && i == 300;
      return is_bad ? INFINITY : RandomTerm(rank, leaf, step, i);
    };
    const GradientSums after = SumGradients(run);
    EXPECT_EQ(after.state, before.state) << method;
    double sum = 0;
    for (const double value : after.sums[3][4]) sum += std::abs(value);
    EXPECT_FALSE(std::isfinite(sum)) << method;
  }
}

// Where nobody is told that a step is not applied: what is not finite gets into a sum, and into no state.
TEST(ReduceScatterTest, WhatIsNotFiniteIsNotKept) {
  for (const std::string method : kMethods) {
    for (const Ranks& ranks : {Ranks{2}, Ranks{4, 2}}) {
      SummedGradients run = RunOf(method, ranks);
      run.shapes = {{40, 33}, {5}};
      run.steps = 4;
      run.term = [](int rank, int leaf, int64_t step, int64_t i) {
        const bool is_bad = rank == 1 && leaf == 0 && step == 1 && i == 300;
        return is_bad ? NAN : RandomTerm(rank, leaf, step, i);
      };
      const GradientSums sums = SumGradients(run);
      for (int64_t step = 0; step < run.steps; ++step) {
        double sum = 0;
        for (const double value : sums.sums[step][0]) sum += std::abs(value);
        EXPECT_EQ(std::isfinite(sum), step != 1) << method << ", step " << step;
        for (const double value : sums.sums[step][1]) EXPECT_TRUE(std::isfinite(value)) << method;
      }
      for (const auto& [name, values] : sums.state) {
        for (const double value : values) EXPECT_TRUE(std::isfinite(value)) << method << ": " << name;
      }
    }
  }
}

// Sums in f64 of what is exact in 16 bits, and all entries of it.
TEST(ReduceScatterTest, SumsOfWhatTheFormatHoldsAreExact) {
  for (const std::string method : {"bf16", "f16", "topk(1)", "randomk(1)", "users_all_reduce"}) {
    for (const Ranks& ranks : kRanks) {
      SummedGradients run = RunOf(method, ranks);
      run.term = [](int rank, int leaf, int64_t, int64_t i) {
        return static_cast<double>((i * 7 + rank * 3 + leaf) % 13 - 6);
      };
      const GradientSums sums = SumGradients(run);
      EXPECT_EQ(sums.sums, sums.exact) << method << " over " << TextOf(ranks);
    }
  }
}

// Before its start step powersgd is a plain reduce-scatter, and an all-reduce of replicas: ranks' terms added up in order.
TEST(ReduceScatterTest, WhatIsNotCompressedHasTheBitsOfAReduceScatter) {
  for (const Ranks& ranks : kRanks) {
    const SummedGradients run = RunOf("powersgd(2, start_step=9)", ranks);
    const GradientSums sums = SumGradients(run);
    const int num_owners = ranks.count / ranks.replicas;
    for (size_t leaf = 0; leaf < run.shapes.size(); ++leaf) {
      for (int64_t i = 0; i < run.shapes[leaf].num_elements(); ++i) {
        double expected = 0;
        for (int replica = 0; replica < ranks.replicas; ++replica) {
          double of_replica = 0;
          for (int rank = 0; rank < num_owners; ++rank) {
            of_replica += RandomTerm(replica * num_owners + rank, static_cast<int>(leaf), 0, i);
          }
          expected += of_replica;
        }
        ASSERT_EQ(sums.sums[0][leaf][i], expected) << TextOf(ranks) << ", leaf " << leaf << ", element " << i;
      }
    }
  }
}

// Every rank selects in each owner's box: the largest of it.
TEST(ReduceScatterTest, TopKSendsTheLargestOfEachBox) {
  SummedGradients run = RunOf("topk(0.4)", {2});
  run.shapes = {{10}};
  run.steps = 2;
  run.term = [](int rank, int, int64_t step, int64_t i) {
    return step > 0 || rank == 1 ? 0.0 : (i % 2 == 0 ? 1.0 : -1.0) * static_cast<double>(i);
  };
  const GradientSums sums = SumGradients(run);
  EXPECT_EQ(sums.sums[0][0], (std::vector<double>{0, 0, 0, -3, 4, 0, 0, 0, 8, -9}));
  EXPECT_EQ(sums.sums[1][0], (std::vector<double>{0, -1, 2, 0, 0, 0, 6, -7, 0, 0}));
}

// The boxes of leaf `leaf`, which is split along one dim, by their numbers of elements.
std::vector<int64_t> BoxSizes(const Shape& shape, int leaf, int num_owners) {
  const int dim = leaf % shape.ndim();
  const int64_t chunk = (shape[dim] + num_owners - 1) / num_owners;
  const int64_t rest = shape[dim] > 0 ? shape.num_elements() / shape[dim] : 0;
  std::vector<int64_t> sizes;
  for (int64_t begin = 0; begin < shape[dim]; begin += chunk) {
    sizes.push_back(std::min(chunk, shape[dim] - begin) * rest);
  }
  return sizes;
}

struct Sizes {
  int64_t elements = 0, entries = 0, blocks = 0, sign_bytes = 0;

  // Of what is encoded on its own.
  void Add(int64_t size) {
    elements += size;
    if (size > 0) entries += std::max<int64_t>(1, size / 100);
    blocks += (size + 255) / 256;
    for (int64_t at = 0; at < size; at += 256) sign_bytes += (std::min<int64_t>(256, size - at) + 7) / 8;
  }
};

int64_t Total(const std::map<std::string, int64_t>& num_bytes) {
  int64_t total = 0;
  for (const auto& [name, bytes] : num_bytes) total += bytes;
  return total;
}

// docs/compression.md: to boxes (n-1) S, and where replicas are summed 2 S more, or R S of entries; S what all
// boxes are encoded.
TEST(ReduceScatterTest, BytesAreThoseOfTheClosedForm) {
  for (const Ranks& ranks : {Ranks{2}, Ranks{3}, Ranks{8}, Ranks{4, 2}, Ranks{6, 3}}) {
    const int64_t replicas = ranks.replicas, n = ranks.count / ranks.replicas;
    Sizes boxes, chunks;  // of boxes; of their chunks, which replicas encode
    const std::vector<Shape> shapes = SummedGradients().shapes;
    for (int leaf = 0; leaf < std::ssize(shapes); ++leaf) {
      for (const int64_t size : BoxSizes(shapes[leaf], leaf, static_cast<int>(n))) {
        boxes.Add(size);
        const int64_t chunk = (size + replicas - 1) / replicas;
        for (int64_t begin = 0; begin < size; begin += chunk) chunks.Add(std::min(chunk, size - begin));
      }
    }
    const auto bytes = [&](const std::string& method) {
      return Total(SumGradients(RunOf(method, ranks)).num_bytes);
    };
    const int64_t first = replicas * (n - 1), second = 2 * (replicas - 1);
    EXPECT_EQ(bytes("bf16"), (first + second) * 2 * boxes.elements) << TextOf(ranks);
    EXPECT_EQ(bytes("f16"), (first + second) * 2 * boxes.elements) << TextOf(ranks);
    EXPECT_EQ(bytes("int8"),
              first * (boxes.elements + 4 * boxes.blocks) + second * (boxes.elements + 4 * chunks.blocks))
        << TextOf(ranks);
    EXPECT_EQ(bytes("onebit"), first * (boxes.sign_bytes + 4 * boxes.blocks) +
                                   second * (chunks.sign_bytes + 4 * chunks.blocks))
        << TextOf(ranks);
    const int64_t of_entries = (first + replicas * (replicas - 1)) * 8 * boxes.entries;
    EXPECT_EQ(bytes("topk(0.01)"), of_entries) << TextOf(ranks);
    EXPECT_EQ(bytes("randomk(0.01)"), of_entries) << TextOf(ranks);
    EXPECT_EQ(bytes("powersgd(2, start_step=1)"), (first + second) * 8 * boxes.elements) << TextOf(ranks);
    if (replicas > 1) continue;
    // As in methods_test: [40, 33], and [6, 2, 9] as [12, 9].
    const int64_t thin = (40 + 33 + 12 + 9) * 2, rest = boxes.elements - 40 * 33 - 108;
    EXPECT_EQ(bytes("powersgd(2)"), (n - 1) * (2 * thin + rest) * 8) << TextOf(ranks);
    EXPECT_EQ(bytes("users_all_reduce"), 2 * (n - 1) * 8 * boxes.elements) << TextOf(ranks);
  }
}

}  // namespace
}  // namespace weft

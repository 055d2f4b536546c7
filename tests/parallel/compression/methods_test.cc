// The methods of communication, against numbers worked out here in f64.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "parallel/compression/communication_method.h"
#include "runtime/base/philox.h"
#include "tests/message_of.h"
#include "tests/parallel/compression/summed_gradients.h"

namespace weft {
namespace {

constexpr const char* kMethods[] = {
    "bf16",         "f16",         "int8",
    "int8(64)",     "onebit",      "topk(0.05)",
    "randomk(0.1)", "powersgd(2)", "powersgd(1, min_compression_rate=0.5, warm_start=false)"};

TEST(MethodsTest, NothingIsLost) {
  for (const char* method : kMethods) {
    for (const int num_ranks : {2, 3, 4}) {
      const SummedGradients run = {.method = method, .num_ranks = num_ranks, .steps = 12};
      EXPECT_LE(Lost(run), 1e-12) << method << " over " << num_ranks;
    }
    EXPECT_LE(Lost({.method = method, .steps = 9, .average = true}), 1e-12) << method << ", of means";
    EXPECT_LE(Lost({.method = method, .num_ranks = 3, .steps = 9, .dtype = DType::kF32}), 1e-5)
        << method << " in f32";
  }
}

// The mutant: the same without error feedback.
TEST(MethodsTest, WithoutErrorFeedbackSomethingIs) {
  for (const std::string method : kMethods) {
    CommunicationMethod without = CommunicationMethod::Parse(method);
    without.arguments["error_feedback"] = 0;
    EXPECT_GE(Lost({.method = without.ToString(), .num_ranks = 3, .steps = 12}), 1e-4) << without;
  }
}

int64_t Total(const std::map<std::string, int64_t>& num_bytes) {
  int64_t total = 0;
  for (const auto& [name, bytes] : num_bytes) total += bytes;
  return total;
}

TEST(MethodsTest, BytesAreThoseOfTheClosedForm) {
  for (const int n : {2, 3, 4, 8}) {
    SummedGradients run = {.num_ranks = n};
    const auto bytes = [&](const std::string& method) {
      run.method = method;
      return Total(SumGradients(run).num_bytes);
    };
    int64_t elements = 0, entries = 0, blocks = 0, onebit = 0;
    for (const Shape& shape : run.shapes) {
      const int64_t size = shape.num_elements();
      elements += size;
      if (size > 0) entries += std::max<int64_t>(1, size / 100);
      const int64_t chunk = (size + n - 1) / n;
      for (int64_t begin = 0; begin < size; begin += chunk) {
        const int64_t own = std::min(chunk, size - begin);
        blocks += (own + 255) / 256;
        for (int64_t at = 0; at < own; at += 256) onebit += (std::min<int64_t>(256, own - at) + 7) / 8;
      }
    }
    EXPECT_EQ(bytes("bf16"), 2 * (n - 1) * 2 * elements) << n;
    EXPECT_EQ(bytes("f16"), 2 * (n - 1) * 2 * elements) << n;
    EXPECT_EQ(bytes("int8"), 2 * (n - 1) * (elements + 4 * blocks)) << n;
    EXPECT_EQ(bytes("onebit"), 2 * (n - 1) * (onebit + 4 * blocks)) << n;
    EXPECT_EQ(bytes("topk(0.01)"), n * (n - 1) * entries * 8) << n;
    EXPECT_EQ(bytes("randomk(0.01)"), n * (n - 1) * entries * 8) << n;
    // (40 + 33) 2 2 < 40 33, and [6, 2, 9] as [12, 9] is not: (12 + 9) 2 2 < 108 is. 257 as [257, 1], [7, 3]: not.
    const int64_t thin = (40 + 33 + 12 + 9) * 2, rest = elements - 40 * 33 - 108;
    EXPECT_EQ(bytes("powersgd(2)"), 2 * (n - 1) * (thin + rest) * 8) << n;
    EXPECT_EQ(bytes("powersgd(2, start_step=1)"), 2 * (n - 1) * elements * 8) << n;
  }
}

// 98% less at 2 ranks, 92% at 8, of f32 against an all-reduce.
TEST(MethodsTest, TopKSavesLessWithMoreRanks) {
  for (const auto& [n, saved] : {std::pair(2, 0.98), std::pair(8, 0.92)}) {
    const SummedGradients run = {
        .method = "topk(0.01)", .num_ranks = n, .shapes = {{100, 100}}, .dtype = DType::kF32};
    EXPECT_NEAR(1 - Total(SumGradients(run).num_bytes) / (2.0 * (n - 1) * 10000 * 4), saved, 1e-12);
  }
}

// Rounding to 8 bits, of one rank's gradient: with 0 on the other, and a largest element that is 127 units exactly, the
// second round is exact up to the unit's own rounding.
TEST(MethodsTest, Int8IsUnbiased) {
  constexpr int64_t kSteps = 4000, kSize = 64;
  const auto value = [](int64_t i) { return i == 0 ? 127.0 : UniformAt({.seed = 3}, i) * 100 - 50; };
  SummedGradients run = {
      .method = "int8(64, error_feedback=false)",
      .shapes = {{kSize * 2}},
      .steps = kSteps,
      .term = [&](int rank, int, int64_t, int64_t i) { return rank == 0 ? value(i % kSize) : 0; }};
  const GradientSums sums = SumGradients(run);
  double chi_square = 0;
  for (int64_t i = 1; i < kSize * 2; ++i) {
    if (i == kSize) continue;
    const double exact = value(i % kSize), fraction = exact - std::floor(exact);
    const double variance = fraction * (1 - fraction);
    double mean = 0, square = 0;
    for (int64_t step = 0; step < kSteps; ++step) {
      const double error = sums.sums[step][0][i] - exact;
      EXPECT_LT(std::abs(error), 1.0001);
      mean += error / kSteps;
      square += error * error / kSteps;
    }
    const double score = mean / std::sqrt(variance / kSteps);
    EXPECT_LT(std::abs(score), 5) << "element " << i << " of " << exact;
    EXPECT_NEAR(square, variance, 0.05) << "element " << i << " of " << exact;
    chi_square += score * score;
  }
  const double freedom = 2 * kSize - 2;
  EXPECT_LT(std::abs(chi_square - freedom), 5 * std::sqrt(2 * freedom));
}

// Drawing by importance, divided by the probability.
TEST(MethodsTest, RandomKIsUnbiasedWithoutErrorFeedback) {
  constexpr int64_t kSteps = 4000, kSize = 50;
  const auto value = [](int64_t i) { return i == 7 ? 300.0 : UniformAt({.seed = 4}, i) * 10 - 5; };
  const SummedGradients run = {
      .method = "randomk(0.2, error_feedback=false)",
      .shapes = {{kSize}},
      .steps = kSteps,
      .term = [&](int rank, int, int64_t, int64_t i) { return rank == 0 ? value(i) : 0; }};
  const GradientSums sums = SumGradients(run);
  double rest = 0;
  for (int64_t i = 0; i < kSize; ++i) rest += i == 7 ? 0 : std::abs(value(i));
  for (int64_t i = 0; i < kSize; ++i) {
    const double p = i == 7 ? 1 : 9 * std::abs(value(i)) / rest;  // one of ten is certain
    double mean = 0;
    int64_t drawn = 0;
    for (int64_t step = 0; step < kSteps; ++step) {
      mean += sums.sums[step][0][i] / kSteps;
      drawn += sums.sums[step][0][i] != 0 ? 1 : 0;
    }
    EXPECT_LE(std::abs(drawn - p * kSteps), 5 * std::sqrt(p * (1 - p) * kSteps) + 1e-9) << i;
    EXPECT_LE(std::abs(mean - value(i)), 5 * std::abs(value(i)) * std::sqrt((1 - p) / p / kSteps) + 1e-4)
        << i;
  }
}

double Square(const std::vector<double>& values) {
  return std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
}

// How far the first sum is from the exact one, by each method's own bound.
TEST(MethodsTest, FirstSumsAreWithinTheBound) {
  constexpr int kRanks = 3;
  for (const std::string method :
       {"bf16", "f16", "int8", "onebit(1000000)", "topk(0.05)", "randomk(0.05)", "powersgd(2)"}) {
    const SummedGradients run = {.method = method, .num_ranks = kRanks};
    const GradientSums sums = SumGradients(run);
    for (size_t leaf = 0; leaf < run.shapes.size(); ++leaf) {
      const int64_t size = run.shapes[leaf].num_elements();
      std::vector<double> error(size);
      double largest = 0, norm_bound = 0;
      for (int rank = 0; rank < kRanks; ++rank) {
        std::vector<double> term(size);
        for (int64_t i = 0; i < size; ++i) term[i] = RandomTerm(rank, leaf, 0, i);
        for (const double value : term) largest = std::max(largest, std::abs(value));
        std::sort(term.begin(), term.end(), [](double a, double b) { return std::abs(a) > std::abs(b); });
        const int64_t k = size == 0 ? 0 : std::max<int64_t>(1, size / 20);
        if (absl::StartsWith(method, "topk")) term.erase(term.begin(), term.begin() + k);
        if (absl::StartsWith(method, "randomk")) term.resize(size - k);  // at worst it sends the smallest
        norm_bound += std::sqrt(Square(term));
      }
      for (int64_t i = 0; i < size; ++i) error[i] = sums.sums[0][leaf][i] - sums.exact[0][leaf][i];
      for (int64_t i = 0; i < size; ++i) {
        const double terms = kRanks * largest;  // no element of any chunk's sum is larger
        if (method == "bf16") {
          EXPECT_LE(std::abs(error[i]), 2 * terms / 256);
        }
        // Gradients are of size 1e-4 and more, where f16's steps are 2^-11 or, at the least, 2^-25.
        if (method == "f16") {
          EXPECT_LE(std::abs(error[i]), 2 * terms / 2048 + 4 * 0x1p-25);
        }
        if (method == "int8") {
          EXPECT_LE(std::abs(error[i]), 2 * terms / 127 * 1.01);
        }
      }
      // Each rank loses less than it has; twice, where the sum is encoded again.
      const double rounds = absl::StartsWith(method, "onebit") ? 2 : 1;
      EXPECT_LE(std::sqrt(Square(error)), rounds * norm_bound * (1 + 1e-6) + 1e-7)
          << method << ", leaf " << leaf;
    }
  }
}

// One rank alone has something, so that the sums are what it sends: the bounds above hold for sending nothing, too.
constexpr int kSender = 1;
double SendersTerm(int rank, int leaf, int64_t step, int64_t i) {
  return rank == kSender ? RandomTerm(rank, leaf, step, i) : 0;
}

// Blocks lie in the chunk of each rank. The sum of a block is encoded again, to the same.
TEST(MethodsTest, OneBitSendsSignsAndTheMean) {
  for (const auto& [method, block] : {std::pair("onebit", 256), std::pair("onebit(20)", 20)}) {
    for (const int num_ranks : {2, 3}) {
      const SummedGradients run = {.method = method, .num_ranks = num_ranks, .term = SendersTerm};
      const GradientSums sums = SumGradients(run);
      for (int leaf = 0; leaf < std::ssize(run.shapes); ++leaf) {
        const int64_t size = run.shapes[leaf].num_elements(), chunk = (size + num_ranks - 1) / num_ranks;
        int64_t end = 0;
        for (int64_t begin = 0; begin < size; begin = end) {
          end = std::min({begin + block, (begin / chunk + 1) * chunk, size});
          double sum = 0, square = 0, lost = 0;
          for (int64_t i = begin; i < end; ++i) {
            const double x = SendersTerm(kSender, leaf, 0, i);
            sum += std::abs(x);
            square += x * x;
          }
          const double mean = static_cast<float>(sum / static_cast<double>(end - begin));
          for (int64_t i = begin; i < end; ++i) {
            const double x = SendersTerm(kSender, leaf, 0, i), decoded = sums.sums[0][leaf][i];
            EXPECT_EQ(decoded, x < 0 ? -mean : mean) << method << ", leaf " << leaf << ", element " << i;
            lost += (x - decoded) * (x - decoded);
          }
          EXPECT_NEAR(lost, square - sum * sum / static_cast<double>(end - begin), 1e-6 * square);
        }
      }
    }
  }
}

TEST(MethodsTest, RandomKSendsElementsAsTheyAre) {
  const SummedGradients run = {.method = "randomk(0.1)", .num_ranks = 3, .term = SendersTerm};
  const GradientSums sums = SumGradients(run);
  for (int leaf = 0; leaf < std::ssize(run.shapes); ++leaf) {
    const int64_t size = run.shapes[leaf].num_elements();
    const int64_t k = size == 0 ? 0 : std::max<int64_t>(1, size / 10);
    double sum = 0;
    for (int64_t i = 0; i < size; ++i) sum += std::abs(SendersTerm(kSender, leaf, 0, i));
    int64_t num_sent = 0;
    for (int64_t i = 0; i < size; ++i) {
      const double x = SendersTerm(kSender, leaf, 0, i), sent = sums.sums[0][leaf][i];
      num_sent += sent != 0 ? 1 : 0;
      EXPECT_TRUE(sent == 0 || sent == static_cast<float>(x))
          << "leaf " << leaf << ": " << sent << " of " << x;
      EXPECT_TRUE(sent != 0 || static_cast<double>(k) * std::abs(x) < sum) << x << " is certain";
    }
    EXPECT_EQ(num_sent, k) << "leaf " << leaf;
  }
}

TEST(MethodsTest, TopKSendsTheLargest) {
  const SummedGradients run = {.method = "topk(0.3)",
                               .shapes = {{10}},
                               .steps = 2,
                               .term = [](int rank, int, int64_t step, int64_t i) {
                                 if (step > 0) return 0.0;
                                 return rank == 0 ? (i % 2 == 0 ? 1.0 : -1.0) * static_cast<double>(i) : 0.5;
                               }};
  // Rank 0 sends 9, 8, 7, then 6, 5, 4 of what it kept; rank 1's are alike: those of lowest index.
  const GradientSums sums = SumGradients(run);
  EXPECT_EQ(sums.sums[0][0], (std::vector<double>{0.5, 0.5, 0.5, 0, 0, 0, 0, -7, 8, -9}));
  EXPECT_EQ(sums.sums[1][0], (std::vector<double>{0, 0, 0, 0.5, 4.5, -4.5, 6, 0, 0, 0}));
}

// Lin et al. 2018: u = m u + g, v = v + u; what is sent of v leaves both.
TEST(MethodsTest, TopKCorrectsMomentum) {
  constexpr int kRanks = 2, kSteps = 6, kSize = 20, kSent = 4;
  for (const bool masks : {true, false}) {
    const SummedGradients run = {
        .method = absl::StrCat("topk(0.2, momentum=0.9, masking=", masks ? "true" : "false", ")"),
        .num_ranks = kRanks,
        .shapes = {{kSize}},
        .steps = kSteps};
    const GradientSums sums = SumGradients(run);
    std::vector<std::vector<double>> u(kRanks, std::vector<double>(kSize)), v = u;
    for (int64_t step = 0; step < kSteps; ++step) {
      std::vector<double> expected(kSize);
      for (int rank = 0; rank < kRanks; ++rank) {
        std::vector<int> order(kSize);
        std::iota(order.begin(), order.end(), 0);
        for (int i = 0; i < kSize; ++i) {
          u[rank][i] = 0.9 * u[rank][i] + RandomTerm(rank, 0, step, i);
          v[rank][i] += u[rank][i];
        }
        std::sort(order.begin(), order.end(),
                  [&](int a, int b) { return std::abs(v[rank][a]) > std::abs(v[rank][b]); });
        for (int i = 0; i < kSent; ++i) {
          const auto sent = static_cast<float>(v[rank][order[i]]);
          expected[order[i]] += sent;
          v[rank][order[i]] -= sent;
          if (masks) u[rank][order[i]] = 0;
        }
      }
      for (int i = 0; i < kSize; ++i) {
        EXPECT_NEAR(sums.sums[step][0][i], expected[i], 1e-10) << run.method << ", step " << step;
      }
    }
  }
}

double LowRankTerm(int rank, int64_t step, int64_t i, int num_terms) {
  const int64_t row = i / 33, col = i % 33;
  double value = 0;
  for (int term = 0; term < num_terms; ++term) {
    value += RandomTerm(term, 4, step, row) * RandomTerm(term + 10, 4, 0, col);
  }
  return value * (rank + 1);
}

TEST(MethodsTest, PowerSgdIsExactUpToItsRank) {
  for (const int terms : {0, 1, 2, 3}) {
    const SummedGradients run = {
        .method = "powersgd(3)",
        .num_ranks = 3,
        .shapes = {{40, 33}},
        .steps = 4,
        .term = [&](int rank, int, int64_t step, int64_t i) { return LowRankTerm(rank, step, i, terms); }};
    const GradientSums sums = SumGradients(run);
    for (int64_t step = 0; step < run.steps; ++step) {
      for (size_t i = 0; i < 40 * 33; ++i) {
        EXPECT_NEAR(sums.sums[step][0][i], sums.exact[step][0][i], 1e-11)
            << "rank " << terms << ", step " << step;
      }
    }
  }
}

// The same gradient again and again: a warm start goes on with the power iteration.
TEST(MethodsTest, PowerSgdsWarmStartImproves) {
  const auto error = [](bool warm) {
    const SummedGradients run = {
        .method = absl::StrCat("powersgd(2, error_feedback=false, warm_start=", warm ? "true)" : "false)"),
        .shapes = {{40, 33}},
        .steps = 15,
        .term = [](int, int, int64_t, int64_t i) {
          double value = LowRankTerm(0, 0, i, 2);
          return value + 0.5 * RandomTerm(3, 4, 0, i);
        }};
    const GradientSums sums = SumGradients(run);
    double square = 0;
    for (size_t i = 0; i < 40 * 33; ++i) {
      square += std::pow(sums.sums[14][0][i] - sums.exact[14][0][i], 2);
    }
    return square;
  };
  EXPECT_LT(error(true), 0.95 * error(false));
}

// One rank's overflow is everybody's, for one step, and no residual.
TEST(MethodsTest, WhatIsNotFiniteIsNotKept) {
  for (const std::string method : kMethods) {
    for (const double bad : {NAN, INFINITY, -INFINITY}) {
      const SummedGradients run = {.method = method,
                                   .num_ranks = 2,
                                   .shapes = {{40, 33}, {5}},
                                   .steps = 4,
                                   .term = [&](int rank, int leaf, int64_t step, int64_t i) {
                                     const bool is_bad = rank == 1 && leaf == 0 && step == 1 && i == 300;
                                     return is_bad ? bad : RandomTerm(rank, leaf, step, i);
                                   }};
      const GradientSums sums = SumGradients(run);
      for (int64_t step = 0; step < run.steps; ++step) {
        double sum = 0;
        for (const double value : sums.sums[step][0]) sum += std::abs(value);
        EXPECT_EQ(std::isfinite(sum), step != 1) << method << " with " << bad << ", step " << step;
        for (const double value : sums.sums[step][1]) EXPECT_TRUE(std::isfinite(value)) << method;
      }
    }
  }
}

TEST(MethodsTest, TextsAreReadAndWritten) {
  for (const std::string text :
       {"none", "bf16", "int8", "int8(64)", "topk(0.01)", "topk(0.01, momentum=0.9, masking=false)",
        "powersgd", "powersgd(2, start_step=100, warm_start=false, error_feedback=false)"}) {
    EXPECT_EQ(CommunicationMethod::Parse(text).ToString(), text);
  }
  EXPECT_EQ(CommunicationMethod::Parse(" topk( fraction = 0.5 ,masking=true ) ").ToString(),
            "topk(0.5, masking=true)");
  EXPECT_EQ(CommunicationMethod::Parse("int8()").ToString(), "int8");
  EXPECT_EQ(CommunicationMethod::Parse("int8(block=1048576)").ToString(), "int8(1048576)");
  EXPECT_EQ(InvalidArgumentMessage([] { CommunicationMethod::Parse("int8(1048577)"); }),
            "communication 'int8(1048577)': argument 'block': expected a whole number from 1 to 1048576, got "
            "'1048577'");
  // Values are read again from the text: no digit may be lacking.
  for (const std::string text :
       {"powersgd(2, start_step=1000000)", "powersgd(2, start_step=1234567)", "topk(0.012345678)",
        "topk(0.1000000000000001)", "topk(1e-300)", "powersgd(1, min_compression_rate=2147483647.5)"}) {
    const CommunicationMethod method = CommunicationMethod::Parse(text);
    EXPECT_EQ(CommunicationMethod::Parse(method.ToString()), method) << method;
  }
}

}  // namespace
}  // namespace weft

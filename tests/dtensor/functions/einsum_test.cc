#include "dtensor/functions/einsum.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <random>

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/functions/contraction_order.h"
#include "dtensor/functions/einsum_terms.h"
#include "gmock/gmock.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/message_of.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::HasSubstr;

// The definition: a loop over every label at once. Extents of 1 repeat.
Tensor NaiveEinsum(absl::string_view equation, const std::vector<Tensor>& operands) {
  std::vector<Shape> shapes;
  for (const Tensor& operand : operands) shapes.push_back(operand.shape());
  const EinsumTerms terms = ParseEinsum(equation, shapes);
  std::vector<EinsumLabel> labels;
  for (const std::vector<EinsumLabel>& operand : terms.operands) {
    for (EinsumLabel label : operand) {
      if (std::find(labels.begin(), labels.end(), label) == labels.end()) labels.push_back(label);
    }
  }
  Shape shape;
  for (EinsumLabel label : terms.output) shape.push_back(terms.extents[label]);
  std::vector<double> result(shape.num_elements(), 0.0);
  std::vector<std::vector<double>> values;
  for (const Tensor& operand : operands) values.push_back(operand.ToVector<double>());
  int64_t count = 1;
  for (EinsumLabel label : labels) count *= terms.extents[label];
  for (int64_t i = 0; i < count; ++i) {
    std::array<int64_t, kNumEinsumLabels> at = {};
    int64_t rest = i;
    for (EinsumLabel label : labels) {
      at[label] = rest % terms.extents[label];
      rest /= terms.extents[label];
    }
    const auto offset = [&](const std::vector<EinsumLabel>& dims, const Shape& extents) {
      int64_t sum = 0;
      for (size_t dim = 0; dim < dims.size(); ++dim) {
        const int64_t extent = extents[static_cast<int>(dim)];
        sum = sum * extent + (extent == 1 ? 0 : at[dims[dim]]);
      }
      return sum;
    };
    double product = 1;
    for (size_t k = 0; k < operands.size(); ++k) product *= values[k][offset(terms.operands[k], shapes[k])];
    result[offset(terms.output, shape)] += product;
  }
  return Tensor::FromValues<double>(shape, result);
}

struct Case {
  const char* equation;
  std::vector<Shape> shapes;
};

std::vector<Case> Cases() {
  return {
      {"ij,jk->ik", {{3, 4}, {4, 5}}},
      {" b i j , b j k -> b k i ", {{2, 3, 4}, {2, 4, 5}}},
      {"ij,jk", {{3, 4}, {4, 5}}},
      {"ba", {{3, 4}}},          // implicit: a transpose
      {"ij->", {{3, 4}}},        // a sum
      {"ijk->ki", {{3, 4, 5}}},  // a sum and a permutation
      {"i,j->ij", {{3}, {4}}},   // outer
      {"i,i->", {{5}, {5}}},     // dot
      {"i,i->i", {{5}, {5}}},    // elementwise
      {"bij,b->bij", {{2, 3, 4}, {2}}},
      {"b,bij->jib", {{2}, {2, 3, 4}}},
      {",ij->ij", {{}, {3, 4}}},
      {"ij,ij->i", {{3, 4}, {3, 4}}},
      {"ij,kj->ik", {{3, 1}, {5, 4}}},  // j repeats
      {"ij,j->ij", {{3, 4}, {1}}},
      {"ij,j->i", {{3, 1}, {1}}},
      {"ijq,jk->ik", {{3, 4, 2}, {4, 5}}},  // q is in one operand alone
      {"...ij,...jk->...ik", {{2, 3, 4}, {2, 4, 5}}},
      {"...ij,jk", {{2, 3, 4}, {4, 5}}},
      {"...i,...i->...", {{2, 1, 4}, {3, 4}}},  // "..." broadcasts
      {"...i->i", {{2, 3, 4}}},
      {"i...->...", {{2, 3, 4}}},
      {"aB,Bc", {{2, 3}, {3, 4}}},  // capitals first
      {"Ba", {{2, 3}}},
      {"ij,jk,kl->il", {{3, 4}, {4, 2}, {2, 5}}},
      {"bsd,dhe,bthe->bhst", {{2, 3, 4}, {4, 2, 3}, {2, 5, 2, 3}}},
      {"i,j,k->kji", {{2}, {3}, {4}}},
      {"ab,bc,cd,de,ea->", {{2, 3}, {3, 4}, {4, 2}, {2, 3}, {3, 2}}},
      {"a,ab,b,bc,c,cd,d,da,a,b->", {{2}, {2, 3}, {3}, {3, 2}, {2}, {2, 3}, {3}, {3, 2}, {2}, {3}}},
      {"abcdefgh,h->abcdefg", {{1, 2, 1, 2, 1, 2, 1, 2}, {2}}},
      {"ij,jk->ik", {{3, 0}, {0, 5}}},
      {"ij,jk->ik", {{0, 4}, {4, 5}}},
  };
}

std::vector<Tensor> Operands(const Case& c) {
  std::vector<Tensor> operands;
  for (const Shape& shape : c.shapes) operands.push_back(RandomF64(shape, 1 + operands.size()));
  return operands;
}

TEST(EinsumTest, MatchesTheDefinitionOnEveryLayout) {
  OnMesh("a=2,b=2", [&](const IntrusivePtr<MeshContext>& context) {
    std::mt19937_64 random(3);
    for (const Case& c : Cases()) {
      const std::vector<Tensor> operands = Operands(c);
      const Tensor expected = NaiveEinsum(c.equation, operands);
      for (int round = 0; round < 6; ++round) {
        std::vector<DTensor> laid;
        for (const Tensor& operand : operands) {
          // The first round on whole operands.
          laid.push_back(Lay(context, operand,
                             round == 0 ? Layout(operand.ndim(), 2)
                                        : RandomLayout(context->mesh(), operand.ndim(), random, true)));
        }
        EXPECT_TRUE(AllClose(Einsum(c.equation, laid).FullTensor(), expected, 1e-12)) << c.equation;
      }
    }
  });
}

// d/dx of sum(weights * einsum) is the einsum with x's place taken: checked by linearity, sum(grad * x) =
// sum.
TEST(EinsumTest, Gradients) {
  OnMesh("a=3", [&](const IntrusivePtr<MeshContext>& context) {
    std::mt19937_64 random(5);
    for (const Case& c : Cases()) {
      const std::vector<Tensor> operands = Operands(c);
      std::vector<DTensor> laid, used;
      for (const Tensor& operand : operands) {
        laid.push_back(Lay(context, operand, Layout(operand.ndim(), 1)).RequiresGrad());
        used.push_back(laid.back().Redistribute(RandomLayout(context->mesh(), operand.ndim(), random, true)));
      }
      const DTensor y = Einsum(c.equation, used);
      const DTensor loss = Sum(y * Lay(context, RandomF64(y.shape(), 77), Layout(y.ndim(), 1)));
      Backward(loss);
      for (size_t i = 0; i < laid.size(); ++i) {
        const double got = Sum(laid[i].grad() * laid[i].Detach()).Item();
        EXPECT_NEAR(got, loss.Item(), 1e-11) << c.equation << ", operand " << i;
        // And a second point, since only the value at x would not tell a gradient that is off across x.
        std::vector<DTensor> moved(laid.begin(), laid.end());
        moved[i] = Lay(context, RandomF64(operands[i].shape(), 50 + i), Layout(operands[i].ndim(), 1));
        const double exact =
            Sum(Einsum(c.equation, moved) * Lay(context, RandomF64(y.shape(), 77), Layout(y.ndim(), 1)))
                .Item();
        EXPECT_NEAR(Sum(laid[i].grad() * moved[i]).Item(), exact, 1e-11) << c.equation << ", operand " << i;
      }
    }
  });
}

// Multiply-adds of an order, from the definition of a step.
double CostOf(const EinsumTerms& terms, const std::vector<ContractionStep>& steps) {
  std::vector<EinsumLabelSet> factors;
  for (const auto& operand : terms.operands) factors.push_back(LabelSet(operand));
  std::vector<bool> live(factors.size(), true);
  const auto needed = [&](EinsumLabelSet set, int a, int b) {
    EinsumLabelSet others = LabelSet(terms.output);
    for (int i = 0; i < static_cast<int>(factors.size()); ++i) {
      if (i != a && i != b && live[i]) others |= factors[i];
    }
    return set & others;
  };
  for (int i = 0; i < static_cast<int>(factors.size()); ++i) factors[i] = needed(factors[i], i, i);
  double total = 0;
  for (const ContractionStep& step : steps) {
    EXPECT_TRUE(live[step.a] && live[step.b] && step.a != step.b);
    const EinsumLabelSet both = factors[step.a] | factors[step.b];
    double cost = 1;
    for (EinsumLabel label = 0; label < kNumEinsumLabels; ++label) {
      if ((both >> label & 1) != 0) cost *= static_cast<double>(terms.extents[label]);
    }
    total += cost;
    factors.push_back(needed(both, step.a, step.b));
    live[step.a] = live[step.b] = false;
    live.push_back(true);
  }
  return total;
}

// Every order there is.
double LeastCost(const EinsumTerms& terms, std::vector<int> left, std::vector<ContractionStep> steps) {
  if (left.size() == 1) return CostOf(terms, steps);
  double least = std::numeric_limits<double>::infinity();
  const int next = static_cast<int>(terms.operands.size() + steps.size());
  for (size_t i = 0; i < left.size(); ++i) {
    for (size_t j = i + 1; j < left.size(); ++j) {
      std::vector<int> rest = left;
      rest.erase(rest.begin() + static_cast<int64_t>(j));
      rest[i] = next;
      std::vector<ContractionStep> more = steps;
      more.push_back({left[i], left[j]});
      least = std::min(least, LeastCost(terms, rest, more));
    }
  }
  return least;
}

TEST(ContractionOrderTest, IsOptimal) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 60; ++round) {
    EinsumTerms terms;
    const int operands = 2 + static_cast<int>(random() % 4);
    for (EinsumLabel label = 26; label < 32; ++label)
      terms.extents[label] = 1 + static_cast<int64_t>(random() % 9);
    EinsumLabelSet all = 0;
    for (int i = 0; i < operands; ++i) {
      terms.operands.emplace_back();
      for (EinsumLabel label = 26; label < 32; ++label) {
        if (random() % 2 == 0) terms.operands.back().push_back(label);
      }
      all |= LabelSet(terms.operands.back());
    }
    for (EinsumLabel label = 26; label < 32; ++label) {
      if ((all >> label & 1) != 0 && random() % 3 == 0) terms.output.push_back(label);
    }
    const ContractionOrder order = OrderContractions(terms);
    ASSERT_EQ(order.steps.size(), terms.operands.size() - 1);
    EXPECT_EQ(CostOf(terms, order.steps), order.multiply_adds) << round;
    std::vector<int> left;
    for (int i = 0; i < operands; ++i) left.push_back(i);
    EXPECT_EQ(order.multiply_adds, LeastCost(terms, left, {})) << round;
  }
}

TEST(ContractionOrderTest, ChainsGoTheCheapWay) {
  // (x [1000, 2] y [2, 1000]) z [1000, 3]: y z first.
  const EinsumTerms chain = ParseEinsum("ab,bc,cd->ad", {{1000, 2}, {2, 1000}, {1000, 3}});
  const ContractionOrder order = OrderContractions(chain);
  EXPECT_EQ(order.steps, (std::vector<ContractionStep>{{1, 2}, {0, 3}}));
  EXPECT_EQ(order.multiply_adds, 2 * 1000 * 3 + 1000 * 2 * 3);
  EXPECT_TRUE(OrderContractions(ParseEinsum("ab->a", {{2, 3}})).steps.empty());
}

TEST(ContractionOrderTest, ManyOperandsAreTakenGreedily) {
  // A chain of twelve vectors and matrices: never wider than a matrix, so the cost stays linear.
  const std::string text = "ab,bc,cd,de,ef,fg,gh,hi,ij,jk,k,a";
  std::vector<Shape> shapes(10, Shape{7, 7});
  shapes.push_back({7});
  shapes.push_back({7});
  const EinsumTerms terms = ParseEinsum(text, shapes);
  const ContractionOrder order = OrderContractions(terms);
  ASSERT_EQ(order.steps.size(), 11u);
  EXPECT_EQ(CostOf(terms, order.steps), order.multiply_adds);
  EXPECT_EQ(order.multiply_adds, 10 * 49 + 7);  // vectors first
}

TEST(EinsumTest, Errors) {
  const auto message = [](absl::string_view equation, const std::vector<Shape>& shapes) {
    return InvalidArgumentMessage([&] { ParseEinsum(equation, shapes); });
  };
  EXPECT_EQ(message("ij,jk", {{2, 3}}), "Einsum \"ij,jk\": has 2 terms, got 1 operands");
  EXPECT_EQ(message("", {}), "Einsum \"\": has 1 terms, got 0 operands");
  EXPECT_EQ(message("i->i->i", {{2}}), "Einsum \"i->i->i\": expected at most one '->'");
  EXPECT_EQ(message("i1", {{2, 3}}), "Einsum \"i1\": expected letters, ',', '...' and '->', got '1'");
  EXPECT_EQ(message("ij", {{2, 3, 4}}), "Einsum \"ij\": operand 0 is [2, 3, 4], its term has 2 letters");
  EXPECT_EQ(message("...ijk", {{2, 3}}),
            "Einsum \"...ijk\": operand 0 is [2, 3], its term has 3 letters beside '...'");
  EXPECT_EQ(message("......", {{2, 3}}), "Einsum \"......\": '...' stands twice in \"......\"");
  EXPECT_EQ(
      message("ii", {{2, 2}}),
      "Einsum \"ii\": letter 'i' stands twice in \"ii\": diagonals are not supported; name the dims apart");
  EXPECT_EQ(message("ij,jk", {{2, 3}, {4, 5}}),
            "Einsum \"ij,jk\": dim 'j' is 4 in operand 1 [4, 5] and 3 before it");
  EXPECT_EQ(message("...,...", {{2, 3}, {4}}),
            "Einsum \"...,...\": dim of '...' is 4 in operand 1 [4] and 3 before it");
  EXPECT_EQ(message("ij->k", {{2, 3}}), "Einsum \"ij->k\": letter 'k' of the output is in no operand");
  EXPECT_EQ(message("abcde,fghij", {{1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}}),
            "Einsum \"abcde,fghij\": the output has 10 dims, a tensor at most 8");
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Full(context, DType::kI32, {2, 2}, 1);
    EXPECT_THAT(ErrorOf([&] { Einsum("ij,jk", {x, x}); }), HasSubstr("expected floating operands"));
    EXPECT_EQ(Sum(Einsum("ij->j", {x})).Item(), 4);
  });
}

}  // namespace
}  // namespace weft

#include "ops/product/contract.h"

#include <numeric>
#include <random>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/hash/hash_testing.h"
#include "gtest/gtest.h"
#include "ops/elementwise/elementwise.h"
#include "runtime/tensor/copy.h"
#include "tests/ops/check_gradients.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using Extents = std::array<int64_t, 128>;  // by letter

Shape ShapeOf(const DimLabels& labels, const Extents& extents) {
  Shape shape;
  for (char letter : labels) shape.push_back(extents[letter]);
  return shape;
}

int64_t IndexOf(const DimLabels& labels, const Extents& extents, const Extents& at) {
  int64_t index = 0;
  for (char letter : labels) index = index * extents[letter] + at[letter];
  return index;
}

// Moves `at` on over `letters`; false after the last.
bool Next(const std::string& letters, const Extents& extents, Extents& at) {
  for (int i = static_cast<int>(letters.size()) - 1; i >= 0; --i) {
    if (++at[letters[i]] < extents[letters[i]]) return true;
    at[letters[i]] = 0;
  }
  return false;
}

// The definition, in double: a loop over every letter.
Tensor Naive(const ContractAttributes& a, const Tensor& x, const Tensor& w) {
  Extents extents = {};
  for (int dim = 0; dim < a.x.size(); ++dim) extents[a.x[dim]] = x.shape()[dim];
  for (int dim = 0; dim < a.w.size(); ++dim) extents[a.w[dim]] = w.shape()[dim];
  std::string letters(a.x.begin(), a.x.end());
  for (char letter : a.w) {
    if (!a.x.Has(letter)) letters.push_back(letter);
  }
  const std::vector<double> xs = x.ToVector<double>();
  const std::vector<double> ws = w.ToVector<double>();
  const Shape shape = ShapeOf(a.y, extents);
  std::vector<double> ys(shape.num_elements(), 0.0);
  if (absl::c_all_of(letters, [&](char letter) { return extents[letter] > 0; })) {
    Extents at = {};
    do {
      ys[IndexOf(a.y, extents, at)] += xs[IndexOf(a.x, extents, at)] * ws[IndexOf(a.w, extents, at)];
    } while (Next(letters, extents, at));
  }
  return CastTensor(Tensor::FromValues<double>(shape, ys), x.dtype(), MakeCpuAllocator());
}

// Random values whose dims lie in memory in a random order, with random gaps between them.
Tensor Scattered(DType dtype, const Shape& shape, std::mt19937& random) {
  std::vector<int> order(shape.ndim());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  Shape stored;
  for (int dim : order) stored.push_back(shape[dim] + static_cast<int64_t>(random() % 3 == 0));
  std::vector<double> values(stored.num_elements());
  std::uniform_real_distribution<double> uniform(-1, 1);
  for (double& value : values) value = uniform(random);
  Tensor tensor = CastTensor(Tensor::FromValues<double>(stored, values), dtype, MakeCpuAllocator());
  std::vector<int> back(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    tensor = tensor.Slice(static_cast<int>(i), 0, shape[order[i]]);
    back[order[i]] = static_cast<int>(i);
  }
  return tensor.Permute(back);
}

Tensor Dense(DType dtype, const Shape& shape, unsigned seed = 1) {
  std::mt19937 random(seed);
  return CloneTensor(Scattered(dtype, shape, random), MakeCpuAllocator());
}

DimLabels Labels(std::string letters, std::mt19937& random) {
  std::shuffle(letters.begin(), letters.end(), random);
  return DimLabels(letters.c_str());
}

// Letters of random classes, extents and orders, and tensors of random strides.
TEST(ContractTest, RandomContractionsOfRandomStrides) {
  std::mt19937 random(42);
  constexpr int64_t kExtents[] = {1, 2, 3, 5, 8};
  for (int round = 0; round < 400; ++round) {
    std::string x, w, y;
    Extents extents = {};
    const int count = static_cast<int>(random() % 6);
    for (int i = 0; i < count; ++i) {
      const char letter = static_cast<char>('a' + i);
      extents[letter] = random() % 40 == 0 ? 0 : kExtents[random() % 5];
      const unsigned kind = random() % 4;  // batch, m, n, k
      if (kind != 2) x.push_back(letter);
      if (kind != 1) w.push_back(letter);
      if (kind != 3) y.push_back(letter);
    }
    const ContractAttributes a = {Labels(x, random), Labels(w, random), Labels(y, random)};
    const DType dtype = round % 2 == 0 ? DType::kF64 : DType::kF32;
    const Tensor tx = Scattered(dtype, ShapeOf(a.x, extents), random);
    const Tensor tw = Scattered(dtype, ShapeOf(a.w, extents), random);
    ASSERT_TRUE(AllClose(RunOp(kContract, {tx, tw}, a), Naive(a, tx, tw), Tolerance(dtype)))
        << a.x.text() << ", " << a.w.text() << " -> " << a.y.text();
  }
}

// Large enough for blocked kernels and several tiles.
TEST(ContractTest, LargeProducts) {
  std::mt19937 random(5);
  for (const ContractAttributes& a :
       {ContractAttributes{"mk", "kn", "mn"}, ContractAttributes{"km", "kn", "mn"},
        ContractAttributes{"mk", "nk", "mn"}, ContractAttributes{"km", "nk", "nm"}}) {
    Extents extents = {};
    extents['m'] = 131;
    extents['n'] = 97;
    extents['k'] = 203;
    for (DType dtype : {DType::kF32, DType::kF64}) {
      const Tensor x = Scattered(dtype, ShapeOf(a.x, extents), random);
      const Tensor w = Scattered(dtype, ShapeOf(a.w, extents), random);
      EXPECT_TRUE(AllClose(RunOp(kContract, {x, w}, a), Naive(a, x, w), 4 * Tolerance(dtype))) << a.x.text();
    }
  }
}

// So many rows that a transposed right operand is copied first, whichever operand that is, and one fewer.
TEST(ContractTest, ManyRows) {
  std::mt19937 random(8);
  for (const int64_t rows : {2047, 2048}) {
    for (const ContractAttributes& a :
         {ContractAttributes{"mk", "nk", "mn"}, ContractAttributes{"bsd", "vd", "bsv"},
          ContractAttributes{"mk", "nk", "nm"}}) {
      Extents extents = {};
      extents['m'] = extents['s'] = rows;
      extents['b'] = 1;
      extents['n'] = extents['v'] = 50;
      extents['k'] = extents['d'] = 49;
      const Tensor x = Dense(DType::kF32, ShapeOf(a.x, extents), 1);
      const Tensor w = Scattered(DType::kF32, ShapeOf(a.w, extents), random);
      EXPECT_TRUE(AllClose(RunOp(kContract, {x, w}, a), Naive(a, x, w), 2 * Tolerance(DType::kF32)))
          << rows << " " << a.y.text();
    }
  }
}

TEST(ContractTest, HalvesAreSummedInFloat) {
  std::mt19937 random(6);
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    const Tensor x = Scattered(dtype, {3, 5, 64}, random);
    const Tensor w = Scattered(dtype, {64, 4, 7}, random);
    const ContractAttributes a = {"bsd", "dhe", "bhse"};
    // The naive result is rounded once; so must be ours, up to the order of the float sum.
    EXPECT_TRUE(AllClose(RunOp(kContract, {x, w}, a), Naive(a, x, w), dtype == DType::kBF16 ? 8e-3 : 1e-3));
    // Unmergeable summed dims.
    const ContractAttributes b = {"bsd", "bsv", "dv"};
    const Tensor u = Dense(dtype, {3, 6, 9}).Slice(1, 0, 5);
    const Tensor v = Dense(dtype, {3, 6, 8}, 2).Slice(1, 1, 5);
    EXPECT_TRUE(AllClose(RunOp(kContract, {u, v}, b), Naive(b, u, v), dtype == DType::kBF16 ? 8e-3 : 1e-3));
  }
}

TEST(ContractTest, EmptySumsAreZeroAndEmptyResultsAreEmpty) {
  const ContractAttributes matmul = {"mk", "kn", "mn"};
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    const Tensor zero = RunOp(kContract, {Dense(dtype, {2, 0}), Dense(dtype, {0, 3})}, matmul);
    EXPECT_EQ(zero.ToVector<double>(), std::vector<double>(6, 0.0));
    EXPECT_EQ(RunOp(kContract, {Dense(dtype, {0, 4}), Dense(dtype, {4, 3})}, matmul).shape(), (Shape{0, 3}));
    EXPECT_EQ(RunOp(kContract, {Dense(dtype, {2, 4}), Dense(dtype, {4, 0})}, matmul).shape(), (Shape{2, 0}));
  }
}

TEST(ContractTest, ExpandedOperands) {
  const Tensor x = Dense(DType::kF32, {1, 6}).Expand({5, 6});
  const Tensor w = Dense(DType::kF32, {}).Expand({6, 4});
  EXPECT_TRUE(AllClose(RunOp(kContract, {x, w}, {"mk", "kn", "mn"}), Naive({"mk", "kn", "mn"}, x, w), 1e-6));
}

TEST(ContractTest, BitsDoNotDependOnThreads) {
  const Tensor x = Dense(DType::kF32, {300, 400});
  const Tensor w = Dense(DType::kF32, {400, 900}, 2);
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor a = CastTensor(x, dtype, MakeCpuAllocator());
    const Tensor b = CastTensor(w, dtype, MakeCpuAllocator());
    const Tensor one = RunOp(kContract, {a, b}, {"mk", "kn", "mn"}, {}, /*num_threads=*/1);
    for (int threads : {2, 3}) {
      EXPECT_TRUE(SameBits(RunOp(kContract, {a, b}, {"mk", "kn", "mn"}, {}, threads), one)) << threads;
    }
  }
}

TEST(ContractTest, BackwardOfUnevenLabels) {
  const Sample<ContractAttributes> sample = {{{{DType::kF64, {2, 3, 4}}}, {{DType::kF64, {4, 2, 3, 2}}}},
                                             {"bsd", "dbhe", "hbes"}};
  EXPECT_TRUE(CheckGradients(kContract, sample));
}

std::string InferError(const std::vector<TensorType>& operands, const ContractAttributes& a) {
  try {
    kContract.Infer(operands, &a);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
    return error.message();
  }
  return "no error";
}

TEST(ContractTest, Errors) {
  const TensorType x = {DType::kF32, {2, 5}};
  const TensorType w = {DType::kF32, {7, 3}};
  EXPECT_EQ(InferError({x, w}, {"bd", "dv", "bv"}),
            "contract: dim 'd' is 5 in x f32[2, 5] (\"bd\") and 7 in w f32[7, 3] (\"dv\")");
  EXPECT_EQ(InferError({x, w}, {"bsd", "dv", "bv"}),
            "contract: x is f32[2, 5], its labels \"bsd\" name 3 dims");
  EXPECT_EQ(InferError({x, {DType::kF64, {5, 3}}}, {"bd", "dv", "bv"}),
            "contract: x and w must have one dtype, got f32[2, 5] and f64[5, 3]: cast one of them");
  EXPECT_EQ(InferError({{DType::kI32, {2, 5}}, w}, {"bd", "dv", "bv"}),
            "contract: expected floating operands, got x i32[2, 5]");
  EXPECT_EQ(
      InferError({x, {DType::kF32, {5, 3}}}, {"bd", "dv", "v"}),
      "contract: dim 'b' is in x \"bd\" alone, neither in the other operand \"dv\" nor in y \"v\": sum it "
      "away first, or name it in y");
  EXPECT_EQ(InferError({x, {DType::kF32, {5, 3}}}, {"bd", "dv", "bvq"}),
            "contract: dim 'q' of y \"bvq\" is neither in x \"bd\" nor in w \"dv\"");
}

// The definition, rounded once.
Tensor NaiveLinear(const ContractAttributes& a, const Tensor& x, const Tensor& w, const Tensor& b) {
  const std::shared_ptr<Allocator> allocator = MakeCpuAllocator();
  const Tensor product =
      Naive(a, CastTensor(x, DType::kF64, allocator), CastTensor(w, DType::kF64, allocator));
  std::vector<double> y = product.ToVector<double>();
  const std::vector<double> bias = b.ToVector<double>();
  for (size_t i = 0; i < y.size(); ++i) y[i] += bias[i % bias.size()];
  return CastTensor(Tensor::FromValues<double>(product.shape(), y), x.dtype(), allocator);
}

struct LinearCase {
  ContractAttributes labels;
  Shape x, w, b;
};

// Small ones, and such as packed products take: whole columns, columns of a weight of several dims, a bias of
// the last of them, w transposed, a result that the product cannot write as it lies, and none at all to sum.
std::vector<LinearCase> LinearCases() {
  return {{{"mk", "kn", "mn"}, {3, 4}, {4, 5}, {5}},
          {{"k", "kn", "n"}, {4}, {4, 5}, {5}},
          {{"mk", "kn", "mn"}, {3, 0}, {0, 5}, {5}},
          {{"mk", "kn", "mn"}, {131, 203}, {203, 97}, {97}},
          {{"bsd", "dthe", "bsthe"}, {2, 70, 600}, {600, 3, 2, 17}, {3, 2, 17}},
          {{"bsd", "dthe", "bsthe"}, {2, 70, 100}, {100, 3, 4, 16}, {4, 16}},
          {{"bshe", "hed", "bsd"}, {2, 50, 4, 16}, {4, 16, 333}, {333}},
          {{"bsd", "vd", "bsv"}, {3, 40, 64}, {290, 64}, {290}},
          {{"bsd", "dhe", "bhse"}, {2, 70, 100}, {100, 3, 64}, {64}},
          {{"bmk", "bkn", "bmn"}, {3, 60, 64}, {3, 64, 96}, {96}}};
}

TEST(LinearTest, IsTheProductPlusTheBias) {
  std::mt19937 random(7);
  for (const LinearCase& c : LinearCases()) {
    for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
      const Tensor x = Scattered(dtype, c.x, random);
      const Tensor w = Scattered(dtype, c.w, random);
      const Tensor b = Scattered(dtype, c.b, random);
      // Halves may be rounded twice, at values of up to 40.
      const double tolerance = dtype == DType::kBF16  ? 0.26
                               : dtype == DType::kF16 ? 0.04
                                                      : 16 * Tolerance(dtype);
      EXPECT_TRUE(AllClose(RunOp(kLinear, {x, w, b}, c.labels), NaiveLinear(c.labels, x, w, b), tolerance))
          << c.x.ToString() << " x " << c.w.ToString() << " + " << c.b.ToString() << " " << DTypeName(dtype);
    }
  }
}

// In f32 the bias is added to the whole sum, so that the two ops and the one say the same.
TEST(LinearTest, BitsAreThoseOfTheSumOfTwoOps) {
  for (const LinearCase& c : LinearCases()) {
    const Tensor x = Dense(DType::kF32, c.x, 1), w = Dense(DType::kF32, c.w, 2),
                 b = Dense(DType::kF32, c.b, 3);
    const Tensor product = RunOp(kContract, {x, w}, c.labels);
    const Tensor fused = RunOp(kLinear, {x, w, b}, c.labels, {}, /*num_threads=*/2);
    EXPECT_TRUE(SameBits(fused, RunOp(kAdd, {product, b}))) << c.x.ToString() << " x " << c.w.ToString();
  }
}

TEST(LinearTest, Errors) {
  const auto message = [](const Shape& b, DType dtype, const ContractAttributes& a) {
    try {
      const std::vector<TensorType> operands = {{DType::kF32, {2, 5}}, {DType::kF32, {5, 3}}, {dtype, b}};
      kLinear.Infer(operands, &a);
    } catch (const Error& error) {
      return error.message();
    }
    return std::string("no error");
  };
  EXPECT_EQ(message({2}, DType::kF32, {"bd", "dv", "bv"}),
            "linear: expected a bias of the last dims of f32[2, 3], got f32[2]");
  EXPECT_EQ(message({3}, DType::kBF16, {"bd", "dv", "bv"}),
            "linear: expected a bias of the last dims of f32[2, 3], got bf16[3]");
  EXPECT_EQ(message({2, 3}, DType::kF32, {"bd", "dv", "bv"}),
            "linear: dim 'b' of the bias f32[2, 3] is none of w's own: x is \"bd\", w \"dv\"");
  EXPECT_EQ(message({3}, DType::kF32, {"bd", "dv", "bvq"}),
            "linear: dim 'q' of y \"bvq\" is neither in x \"bd\" nor in w \"dv\"");
}

TEST(DimLabelsTest, Errors) {
  const auto message = [](const char* letters) {
    try {
      DimLabels labels(letters);
    } catch (const Error& error) {
      return error.message();
    }
    return std::string("no error");
  };
  EXPECT_EQ(message("bb"), "dim label 'b' stands twice in one tensor");
  EXPECT_EQ(message("bS"), "dim labels are lowercase letters, got 'S'");
  EXPECT_EQ(message("abcdefghi"), "a tensor has at most 8 dims");
}

TEST(DimLabelsTest, CompareAndHash) {
  EXPECT_TRUE(absl::VerifyTypeImplementsAbslHashCorrectly(
      {DimLabels(), DimLabels("a"), DimLabels("ab"), DimLabels("ba"), DimLabels("abcdefgh")}));
}

}  // namespace
}  // namespace weft

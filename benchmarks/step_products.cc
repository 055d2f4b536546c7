#include "benchmarks/step_products.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "benchmarks/figure.h"
#include "dtensor/functions.h"

namespace weft {
namespace {

// Extents by letter, read off the shapes of the operands.
int64_t ExtentOf(const StepProduct& product, char letter) {
  const int dim = product.labels.x.Find(letter);
  return dim >= 0 ? product.x[dim] : product.w[product.labels.w.Find(letter)];
}

Shape ShapeOf(const StepProduct& product, const DimLabels& labels) {
  Shape shape;
  for (char letter : labels) shape.push_back(ExtentOf(product, letter));
  return shape;
}

// The product itself and those of its backward (ops/product/contract.cc).
void AppendWithGradients(StepProduct forward, std::vector<StepProduct>& to) {
  const std::string name = forward.name;
  const ContractAttributes a = forward.labels;
  const Shape y = ShapeOf(forward, a.y);
  forward.name = name + "/forward";
  to.push_back(forward);
  to.push_back({name + "/dx", {.x = a.y, .w = a.w, .y = a.x}, y, forward.w, forward.count});
  to.push_back({name + "/dw", {.x = a.x, .w = a.y, .y = a.w}, forward.x, y, forward.count});
}

}  // namespace

double StepProduct::flops() const {
  double flops = 2;
  for (char letter : labels.x) flops *= static_cast<double>(ExtentOf(*this, letter));
  for (char letter : labels.w) {
    if (!labels.x.Has(letter)) flops *= static_cast<double>(ExtentOf(*this, letter));
  }
  return flops;
}

std::vector<StepProduct> ProductsOf(const GptConfig& config, int64_t batch, int64_t tokens) {
  const int64_t d = config.dim;
  const int64_t h = config.heads;
  const int64_t e = d / h;
  std::vector<StepProduct> products;
  const Shape x = {batch, tokens, d};
  AppendWithGradients({"qkv", {"bsd", "dthe", "bsthe"}, x, {d, 3, h, e}, config.layers}, products);
  AppendWithGradients({"proj", {"bshe", "hed", "bsd"}, {batch, tokens, h, e}, {h, e, d}, config.layers},
                      products);
  AppendWithGradients({"up", {"bsd", "df", "bsf"}, x, {d, 4 * d}, config.layers}, products);
  AppendWithGradients({"down", {"bsf", "fd", "bsd"}, {batch, tokens, 4 * d}, {4 * d, d}, config.layers},
                      products);
  AppendWithGradients({"head", {"bsd", "vd", "bsv"}, x, {config.vocabulary, d}, 1}, products);
  return products;
}

double AttentionFlops(const GptConfig& config, int64_t batch, int64_t tokens) {
  // A product of all scores: 2 s^2 e for each head.
  const double scores = 2.0 * static_cast<double>(tokens * tokens * config.dim * batch);
  return 7 * scores / 2 * static_cast<double>(config.layers);
}

double StepFlops(const GptConfig& config, int64_t batch, int64_t tokens) {
  double flops = AttentionFlops(config, batch, tokens) * 6 / 7;
  for (const StepProduct& product : ProductsOf(config, batch, tokens)) {
    flops += static_cast<double>(product.count) * product.flops();
  }
  return flops;
}

double SecondsOf(const StepProduct& product, const IntrusivePtr<MeshContext>& context, DType dtype,
                 double seconds) {
  constexpr int kLeastCalls = 3;
  using Clock = std::chrono::steady_clock;
  const auto random = [&](const Shape& shape) {
    return RandomUniform(context, dtype, shape, /*layout=*/{}, "operand");
  };
  const DTensor x = random(product.x);
  const DTensor w = random(product.w);
  const auto run = [&] { Call(kContract, {x, w}, product.labels); };
  run();
  std::vector<double> times;
  const Clock::time_point begin = Clock::now();
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  while (times.size() < kLeastCalls || since(begin) < seconds) {
    const Clock::time_point start = Clock::now();
    run();
    times.push_back(since(start));
  }
  return Median(std::move(times));
}

}  // namespace weft

#include "examples/gpt/gpt_text.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/base/error.h"
#include "runtime/base/philox.h"

namespace weft {
namespace {

DTensor Rows(const IntrusivePtr<MeshContext>& context, const Layout& layout, const Shape& shape,
             const ShardBox& box, const std::vector<int32_t>& values) {
  const Tensor local = Tensor::FromValues<int32_t>(box.shape, values, context->allocator());
  return DTensor::FromLocal(context, local, layout, shape);
}

// Those of a model that has diverged have no order, and so no likeliest token.
void RequireFinite(const std::vector<double>& logits) {
  for (size_t token = 0; token < logits.size(); ++token) {
    if (std::isfinite(logits[token])) continue;
    Throw(absl::StatusCode::kDataLoss, "sampling: the score of token ", token, " is ", logits[token],
          ", expected a finite number: the model has diverged");
  }
}

// The index drawn from softmax(logits / temperature) among the `top_k` largest, by one uniform number in [0,
// 1).
int32_t Draw(std::vector<double> logits, const SampleOptions& options, double uniform) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  if (options.temperature == 0) return order[0];
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(order.size())) order.resize(options.top_k);
  std::vector<double> weights;
  for (int32_t token : order)
    weights.push_back(std::exp((logits[token] - logits[order[0]]) / options.temperature));
  double rest = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t i = 0; i < order.size(); ++i) {
    rest -= weights[i];
    if (rest < 0) return order[i];
  }
  return order.back();
}

}  // namespace

GptBatch MakeGptBatch(const IntrusivePtr<MeshContext>& context, const Layout& layout, int64_t batch,
                      int64_t sequence, absl::FunctionRef<TokenBatch(int64_t first, int64_t count)> get) {
  const Shape shape = {batch, sequence};
  const ShardBox box = LocalBox(shape, layout, context->mesh(), context->coordinate());
  const TokenBatch rows = get(box.offset[0], box.shape[0]);
  return {Rows(context, layout, shape, box, rows.inputs), Rows(context, layout, shape, box, rows.targets)};
}

double Evaluate(Gpt& model, const EvalBatches& batches, const Layout& layout, int64_t batch,
                PipelineExecutor* pipeline) {
  const IntrusivePtr<MeshContext>& context = model.context();
  RankState& state = context->state();
  const NoGradGuard no_grad(state);
  const EvaluationGuard evaluation(state);
  double sum = 0;
  double count = 0;
  const auto add = [&](const LossSum& loss) {
    sum += loss.sum.Item();
    count += loss.count.Item();
  };
  std::vector<Microbatch> parts;  // that go through the stages one after another
  for (int64_t first = 0; first < batches.num_samples(); first += batch) {
    const int64_t rows = std::min(batch, batches.num_samples() - first);
    const GptBatch data =
        MakeGptBatch(context, layout, rows, model.config().context,
                     [&](int64_t begin, int64_t num_rows) { return batches.Get(first + begin, num_rows); });
    if (pipeline != nullptr) {
      parts.push_back({.inputs = {data.tokens}, .targets = data.targets});
    } else {
      add(model.Loss(data.tokens, data.targets));
    }
  }
  if (pipeline != nullptr) add(pipeline->ForwardLoss(parts));
  return sum / count;
}

std::vector<int32_t> SampleGpt(Gpt& model, const Layout& layout, std::vector<int32_t> prompt,
                               int64_t vocabulary, const SampleOptions& options, PipelineExecutor* pipeline) {
  WEFT_REQUIRE(!prompt.empty(), "sampling needs a prompt of at least one token");
  const IntrusivePtr<MeshContext>& context = model.context();
  RankState& state = context->state();
  const NoGradGuard no_grad(state);
  const EvaluationGuard evaluation(state);
  const RandomKey key{.seed = options.seed, .stream = StreamOf("sample"), .step = 0};
  std::vector<int32_t> tokens = std::move(prompt);
  const size_t start = tokens.size();
  for (int64_t i = 0; i < options.num_tokens; ++i) {
    const int64_t length = std::min<int64_t>(model.config().context, static_cast<int64_t>(tokens.size()));
    const std::vector<int32_t> window(tokens.end() - length, tokens.end());
    const DTensor input =
        DTensor::Distribute(context, Tensor::FromValues<int32_t>({1, length}, window), layout);
    const DTensor scores = pipeline != nullptr ? pipeline->ForwardOutputs({input})[0] : model(input);
    const DTensor last = Slice(scores, /*dim=*/1, length - 1, /*length=*/1);
    std::vector<double> logits = last.FullTensor().ToVector<double>();
    logits.resize(
        std::min<size_t>(logits.size(), vocabulary));  // a model may have rows that the tokenizer lacks
    RequireFinite(logits);
    tokens.push_back(Draw(std::move(logits), options, UniformAt(key, static_cast<uint64_t>(i))));
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(start), tokens.end()};
}

}  // namespace weft

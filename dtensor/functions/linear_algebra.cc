#include "dtensor/functions/linear_algebra.h"

#include <string>

#include "dtensor/dispatch.h"
#include "dtensor/functions/activation.h"
#include "dtensor/functions/autocast.h"
#include "ops/product/contract.h"

namespace weft {
namespace {

DimLabels LabelsOf(absl::string_view letters) {
  DimLabels labels;
  for (char letter : letters) labels.push_back(letter);
  return labels;
}

}  // namespace

DTensor MatMul(const DTensor& x, const DTensor& w) {
  const bool batched = w.ndim() > 2;
  WEFT_REQUIRE(x.ndim() >= 2 && x.ndim() <= Shape::kMaxDims && (w.ndim() == 2 || w.ndim() == x.ndim()),
               "MatMul: expected [..., m, k] x [k, n], or as many dims on both sides; got ", x.ToString(),
               " and ", w.ToString());
  const std::string lead = std::string("abcdef").substr(0, x.ndim() - 2);
  return Contract(x, lead + "mk", w, batched ? lead + "kn" : "kn", lead + "mn");
}

DTensor Bmm(const DTensor& x, const DTensor& w) {
  WEFT_REQUIRE(x.ndim() == 3 && w.ndim() == 3, "Bmm: expected [b, m, k] x [b, k, n], got ", x.ToString(),
               " and ", w.ToString());
  return Contract(x, "bmk", w, "bkn", "bmn");
}

DTensor LinearTransform(const DTensor& x, const DTensor& weight, const DTensor& bias) {
  WEFT_REQUIRE(x.ndim() >= 1 && weight.ndim() == 2 && weight.shape()[1] == x.shape()[x.ndim() - 1],
               "LinearTransform: expected x [..., d] and weight [n, d], got ", x.ToString(), " and ",
               weight.ToString());
  WEFT_REQUIRE(!bias.defined() || bias.shape() == Shape({weight.shape()[0]}),
               "LinearTransform: expected a bias [n] for weight ", weight.ToString(), ", got ",
               bias.ToString());
  const std::string lead = std::string("abcefgh").substr(0, x.ndim() - 1);
  return Contract(x, lead + "d", weight, "nd", lead + "n", bias);
}

DTensor Contract(const DTensor& x, absl::string_view x_dims, const DTensor& w, absl::string_view w_dims,
                 absl::string_view y_dims) {
  const ContractAttributes labels = {.x = LabelsOf(x_dims), .w = LabelsOf(w_dims), .y = LabelsOf(y_dims)};
  if (Autocasts(x)) [[unlikely]]
    return Call(kContract, {AutocastToProduct(x), AutocastToProduct(w)}, labels);
  return Call(kContract, {x, w}, labels);
}

DTensor Contract(const DTensor& x, absl::string_view x_dims, const DTensor& w, absl::string_view w_dims,
                 absl::string_view y_dims, const DTensor& bias) {
  if (!bias.defined()) return Contract(x, x_dims, w, w_dims, y_dims);
  const ContractAttributes labels = {.x = LabelsOf(x_dims), .w = LabelsOf(w_dims), .y = LabelsOf(y_dims)};
  if (Autocasts(x)) [[unlikely]]
    return Call(kLinear, {AutocastToProduct(x), AutocastToProduct(w), AutocastToProduct(bias)}, labels);
  return Call(kLinear, {x, w, bias}, labels);
}

DTensor GeluContract(const DTensor& h, absl::string_view h_dims, const DTensor& w, absl::string_view w_dims,
                     absl::string_view y_dims, const DTensor& bias) {
  if (!bias.defined()) return Contract(Gelu(h), h_dims, w, w_dims, y_dims);
  const ContractAttributes labels = {.x = LabelsOf(h_dims), .w = LabelsOf(w_dims), .y = LabelsOf(y_dims)};
  if (Autocasts(h)) [[unlikely]]
    return CallAll(kGeluLinear, {AutocastToProduct(h), AutocastToProduct(w), AutocastToProduct(bias)},
                   labels)[0];
  return CallAll(kGeluLinear, {h, w, bias}, labels)[0];
}

}  // namespace weft

// What an optimizer does differently for some of its parameters.

#ifndef WEFT_DTENSOR_OPTIM_PARAMETER_GROUPS_H_
#define WEFT_DTENSOR_OPTIM_PARAMETER_GROUPS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/nn/parameter.h"

namespace weft {

// One row of a list: some parameters, and what holds for them instead of what the optimizer's options say.
// Of several rows that mean one parameter, the later wins, field by field:
//
//   {{.path = "", .weight_decay = 0.1}, {.path = "blocks.*", .lr_scale = 0.5}, {.path = "wte", .lr_scale = 0.1}}
//
//   wte.weight             lr_scale 0.1, weight_decay 0.1
//   blocks.0.mlp.up.bias   lr_scale 0.5, weight_decay 0.1, which a bias ignores
struct ParameterGroup {
  // As in a plan: "*" is any one component, "**" any number of them, "" the whole model. It means all parameters
  // of the modules that it names, or, if it names none, the parameters of that path. That goes by the model, whichever of its
  // parameters the optimizer has.
  std::string path;
  std::optional<double> lr_scale = std::nullopt;  // multiplies the step's learning rate
  std::optional<double> weight_decay =
      std::nullopt;                            // of those parameters that decay (ParameterSpec::decays)
  std::optional<double> beta1 = std::nullopt;  // of AdamW, Lion and LAMB
  std::optional<double> beta2 = std::nullopt;
  // Of Muon: these are matrices, and what each dim is, one letter per dim: i (input features), o (output
  // features), b (each index has a matrix of its own). "io" is a weight [d, n]; "iboo" a weight [d, 3, h, e]
  // for queries, keys and values, which are three matrices; "iio" a weight [h, e, d].
  std::optional<std::string> matrix = std::nullopt;

  bool operator==(const ParameterGroup&) const = default;
};

// What `groups` say of each parameter, all together; `path` is the parameter's.
//
// Errors: InvalidArgument, starting with `optimizer`: for a path that means no parameter of the model, whether it is one
//         of `parameters` or not (frozen, or of another stage), naming the nearest;
//         for a field out of its range, naming group, field and range.
std::vector<ParameterGroup> ResolveGroups(const std::vector<Parameter*>& parameters,
                                          absl::Span<const ParameterGroup> groups,
                                          absl::string_view optimizer);

// What an optimizer's own options say, which holds where no group says otherwise.
// Errors: InvalidArgument, starting with `optimizer`, for a beta that is not at least 0 and below 1, and for an eps or a
//         decay that is below 0 or not finite: parameters would be NaN, or grow with every update.
void RequireBetas(double beta1, double beta2, absl::string_view optimizer);
void RequireEps(double eps, absl::string_view optimizer);
void RequireDecay(double weight_decay, absl::string_view optimizer);

// For optimizers without betas, and those that know no matrices.
// Errors: InvalidArgument, starting with `optimizer`, for a group that sets one.
void RequireNoBetas(absl::Span<const ParameterGroup> groups, absl::string_view optimizer);
void RequireNoMatrices(absl::Span<const ParameterGroup> groups, absl::string_view optimizer);

}  // namespace weft

#endif  // WEFT_DTENSOR_OPTIM_PARAMETER_GROUPS_H_

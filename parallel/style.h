// A style: what one mesh axis does to one module, or how one module runs; as data that anyone adds to.

#ifndef WEFT_PARALLEL_STYLE_H_
#define WEFT_PARALLEL_STYLE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/nn/parameter.h"
#include "mesh/placement.h"
#include "parallel/parameter_splits.h"
#include "runtime/base/dtype.h"

namespace weft {

using StyleValue = std::variant<bool, int64_t, double, std::string, Placement>;

// A value: copies, compares, prints. Build with the functions of parallel/styles, or of your own.
struct Style {
  std::string name;                               // of a registered style: "FullyShard"
  std::string axis = {};                          // empty for a style without an axis
  std::map<std::string, StyleValue> fields = {};  // those that are given

  // A copy in which a field is given; this style where there is no value.
  Style With(const std::string& field, std::optional<StyleValue> value) const;

  // The value of a field, or nothing if it is not given, or is of another type.
  template <class T>
  std::optional<T> Get(const std::string& field) const {
    const auto found = fields.find(field);
    if (found == fields.end() || !std::holds_alternative<T>(found->second)) return std::nullopt;
    return std::get<T>(found->second);
  }
  std::optional<Placement> input() const { return Get<Placement>("input"); }
  std::optional<Placement> output() const { return Get<Placement>("output"); }

  bool operator==(const Style&) const = default;
  // "ColumnParallel(tp)", "RowParallel(tp, output=Shard(1))", "FullyShard(dp, dim=1)", "Ignore()".
  std::string ToString() const;
};

// "true", "1", "0.5", "always", "Shard(1)".
std::string StyleValueText(const StyleValue& value);
std::ostream& operator<<(std::ostream& out, const Style& style);

// A field that a style may have.
struct StyleField {
  enum class Type : uint8_t { kFlag, kWholeNumber, kNumber, kWord, kPlacement };
  std::string name;
  Type type = Type::kFlag;
  int64_t least = 0;  // of a whole number
  int64_t most = 0;
  std::vector<std::string> words = {};  // those that a word may be; any but the empty one if there are none

  // What may be given: "true or false", "a whole number from -8 to 7", "always or never".
  std::string Expected() const;
  bool Accepts(const StyleValue& value) const;
};

// Fields that styles share: where along the axis the module's input must lie, and its output; the style's own rule
// if not given.
struct StyleBorders {
  std::optional<Placement> input = std::nullopt;
  std::optional<Placement> output = std::nullopt;
};
std::vector<StyleField> BorderFields();
// BorderFields() and more.
std::vector<StyleField> BorderFieldsAnd(std::vector<StyleField> more);

// Whether a unit of FullyShard gives its gathered parameters up between its uses in one step.
enum class Reshard : uint8_t {
  kAlways,  // after forward and after backward: the least memory
  kNever,   // gathered once per step, kept until the update
};

// How far below its module a style reaches.
enum class StyleReach : uint8_t {
  kBorder,  // the module alone
  kOwn,     // its own parameters, of which it splits a dim each
  kBelow,   // all parameters below; of an axis, those that no inner entry of the same style and axis has
};

// Where a style pins the tensors that cross its module's border, along its axis.
struct StylePins {
  std::optional<Placement> input = std::nullopt;
  std::optional<Placement> output = std::nullopt;
  std::optional<Placement> output_gradient = std::nullopt;  // Redistribute's rule if not given
  // Of single ones of several inputs and outputs, by number (ModuleCall::Input).
  std::vector<std::optional<Placement>> inputs = {};
  std::vector<std::optional<Placement>> outputs = {};
};

// The pins of a style whose ranks each make a term of the output: the output is summed, to Replicate unless the
// style says otherwise, and every rank needs the whole gradient of the sum.
StylePins SummedOutputPins(const Style& style, bool is_root);

// What a style of an axis does to the parameters that it reaches.
struct StyleSplit {
  SplitColumns columns = {};
  bool accumulates_unreduced = true;
  // Of a style that reaches below: the dim, from the end if negative; as FullyShard chooses if not given. What is
  // split at rest and whole in compute is gathered by units, one for each marked module.
  std::optional<int> dim = std::nullopt;
  Reshard reshard = Reshard::kAlways;
  int64_t reshard_to =
      0;  // ranks of the smaller groups that units rest in between forward and backward; 0: none
  int64_t wrap_from = 0;
  std::string wrap = {};  // a type of modules; empty: none
};

// In which dtypes a style has parameters and modules compute; the run's where not given.
struct StyleDTypes {
  std::optional<DType> param = std::nullopt;   // of parameters in compute, and of what enters a module
  std::optional<DType> reduce = std::nullopt;  // in which gradients are summed over ranks
  std::optional<DType> output = std::nullopt;  // of what leaves a module
  std::optional<DType> buffer = std::nullopt;  // of floating buffers whose modules do not say theirs
};

// What a registered style means. All of it is placements: a style has no collective of its own.
struct StyleRules {
  std::string name;
  bool has_axis = true;
  std::vector<StyleField> fields = {};  // in the order of the text form
  StyleReach reach = StyleReach::kBorder;
  // Nothing is pinned without it, not even where fields say so.
  StylePins (*pins)(const Style& style, bool is_root) = nullptr;
  // Nothing is split without it.
  StyleSplit (*split)(const Style& style) = nullptr;
  // Of StyleReach::kOwn: the dim that the style splits of a parameter, -1 if none.
  int (*own_dim)(const ParameterSpec& spec) = nullptr;
  // Of a style without an axis that reaches below: fields that are of the modules that an entry names, and of no others.
  std::vector<std::string> own_fields = {};
  // Of a style without an axis.
  StyleDTypes (*dtypes)(const Style& style) = nullptr;
  // Of a style without an axis that reaches below: where parameters lie.
  ParameterMemory (*memory)(const Style& style) = nullptr;
  // What fields mean beyond their types.
  // Errors: InvalidArgument.
  void (*check)(const Style& style) = nullptr;
  // Of a style without an axis: what else it does to the modules of `model` for which a plan comes to `style`, those
  // that are here, in order of registration; after they have their context and their border.
  void (*apply)(const Style& style, Module& model, absl::Span<Module* const> modules) = nullptr;
  // Of a style without an axis: parameters that it reaches are left out by styles of an axis that reach below.
  bool leaves_out = false;
  // The modules that it names run on parts of the axis: stages (parallel/styles/pipeline.h).
  bool makes_stages = false;
  // The modules that it names lie on some indices of the axis (parallel/styles/on.h).
  bool makes_parts = false;
};

// Registers a style from its own file, during static initialisation:
//   const RegisterStyle kRegister({.name = "HeadParallel", ...});
// The table is complete before main and never changes after. Registering a name twice ends the program with a
// message: it is a defect of the build.
class RegisterStyle {
 public:
  explicit RegisterStyle(StyleRules rules);
};

// Errors: InvalidArgument that lists the names there are.
const StyleRules& FindStyle(absl::string_view name);

// Errors: InvalidArgument for a name or a field that there is not, naming those that there are, for a value that the
//         field does not take, and for an axis that is lacking or not wanted.
void CheckStyle(const Style& style);

}  // namespace weft

#endif  // WEFT_PARALLEL_STYLE_H_

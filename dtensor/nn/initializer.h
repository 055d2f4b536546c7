// How the first value of a parameter or a buffer is made.

#ifndef WEFT_DTENSOR_NN_INITIALIZER_H_
#define WEFT_DTENSOR_NN_INITIALIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "dtensor/dtensor.h"
#include "mesh/layout.h"
#include "runtime/base/random_key.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// How many inputs an output of a weight is a sum of, and how many outputs an input reaches.
struct Fans {
  int64_t in = 0;
  int64_t out = 0;

  bool operator==(const Fans&) const = default;
};

// A first value that is to be made.
struct FirstValue {
  IntrusivePtr<MeshContext> context;
  Layout layout;
  TensorType type;
  RandomKey key;                            // of this parameter alone
  std::optional<Fans> fans = std::nullopt;  // if the module declares them
  std::string path = "";                    // for errors
};

// Makes first values that Initializer::Kind has no name for. Those of dtensor/nn/initializers.h are such; so may be a
// user's own. Immutable.
class FirstValueMaker {
 public:
  virtual ~FirstValueMaker() = default;
  // This rank's piece. An element depends on the request's key, fans and type and on its global index only, so that it is
  // the same on every layout.
  virtual DTensor Make(const FirstValue& value) const = 0;
};

// The distribution that a parameter's first value is drawn from. Elements depend on the seed, the parameter's
// path and their global index only, so they are the same on every layout. `==` holds between copies.
struct Initializer {
  enum class Kind : uint8_t { kConstant, kNormal, kUniform, kMade };
  Kind kind = Kind::kConstant;
  double a = 0;                                            // the constant, the mean, or the lower bound
  double b = 0;                                            // the standard deviation, or the upper bound
  std::shared_ptr<const FirstValueMaker> maker = nullptr;  // of kMade

  static Initializer Constant(double value) { return {Kind::kConstant, value, 0}; }
  static Initializer Normal(double mean, double stddev) { return {Kind::kNormal, mean, stddev}; }
  static Initializer Uniform(double low, double high) { return {Kind::kUniform, low, high}; }
  static Initializer Made(std::shared_ptr<const FirstValueMaker> maker) {
    return {Kind::kMade, 0, 0, std::move(maker)};
  }

  bool operator==(const Initializer&) const = default;
};

// Cost:   no communication; of the ops' own, this rank's piece alone.
// Errors: those of the maker; InvalidArgument for a Partial layout.
DTensor MakeFirstValue(const Initializer& initializer, const FirstValue& value);

}  // namespace weft

#endif  // WEFT_DTENSOR_NN_INITIALIZER_H_

// Which methods of communication there are.

#ifndef WEFT_PARALLEL_COMPRESSION_COMPRESSOR_REGISTRY_H_
#define WEFT_PARALLEL_COMPRESSION_COMPRESSOR_REGISTRY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace weft {

struct CommunicationMethod;
class Compressor;

// An argument that a method takes: a number. The first of a method may be given without its name.
struct MethodArgument {
  enum class Type : uint8_t { kNumber, kWholeNumber, kFlag };
  std::string name;
  Type type = Type::kNumber;
  double standard = 0;  // where it is not given; of a flag 0 or 1
  double least = 0;
  double most = 1;
  bool excludes_least = false;
  bool is_required = false;

  // "a number above 0, at most 1", "a whole number from 1 to 1024", "true or false".
  std::string Expected() const;
  bool Accepts(double value) const;
  // Of a value that it accepts, in as few digits as tell it from all others: "0.01", "1048576", "true".
  std::string ValueText(double value) const;
  bool operator==(const MethodArgument&) const = default;
};

// What a registered method is.
struct CompressorRules {
  std::string name;
  std::vector<MethodArgument> arguments = {};  // in the order of the text
  std::unique_ptr<Compressor> (*make)(const CommunicationMethod& method) = nullptr;
  // What arguments mean beyond their types.
  // Errors: InvalidArgument.
  void (*check)(const CommunicationMethod& method) = nullptr;
  // By which method its sums are summed over replicas in their turn: without what is done to each term once. Null: by
  // the same.
  CommunicationMethod (*of_replicas)(const CommunicationMethod& method) = nullptr;
};

// Registers a method from its own file, during static initialisation, Weft's own and those of a program:
//   const RegisterCompressor kRegister({.name = "mine", .make = ...});
// Registering a name twice ends the program with a message: it is a defect of the build.
class RegisterCompressor {
 public:
  explicit RegisterCompressor(CompressorRules rules);
};

// Errors: InvalidArgument that lists the names there are.
const CompressorRules& FindCompressor(absl::string_view name);
const CompressorRules* FindCompressorOrNull(absl::string_view name);
// All that are linked, and "none"; in alphabetical order.
std::vector<std::string> CompressorNames();

}  // namespace weft

#endif  // WEFT_PARALLEL_COMPRESSION_COMPRESSOR_REGISTRY_H_

// int8: a block's elements in units of its largest over 127, rounded up or down at random, so that the mean is exact.
//
// Source: the stochastic rounding of Alistarh et al., "QSGD", 2017, by counter-based random bits.

#include <cmath>
#include <cstring>
#include <limits>

#include "parallel/compression/methods/block_compressor.h"
#include "runtime/base/philox.h"

namespace weft {
namespace {

constexpr int64_t kLargestBlock = int64_t{1} << 20;

class Int8Codec final : public BlockCodec {
 public:
  explicit Int8Codec(int64_t block) : block_(block) {}
  int64_t block() const override { return block_; }
  int64_t BlockBytes(int64_t num_elements) const override { return num_elements + 4; }

  void Encode(absl::Span<const double> values, const RandomKey& key, int64_t index,
              uint8_t* bytes) const override {
    double largest = 0;
    for (const double value : values) {  // max drops nan, this does not
      if (!std::isfinite(value)) largest = std::numeric_limits<double>::quiet_NaN();
      if (!(std::abs(value) <= largest)) largest = std::isnan(largest) ? largest : std::abs(value);
    }
    auto unit = static_cast<float>(largest / 127);
    // Rounded up, so that no element is beyond 127 units: cutting one off would bias it.
    if (127.0 * unit < largest) unit = std::nextafter(unit, std::numeric_limits<float>::infinity());
    std::memcpy(bytes, &unit, 4);
    bytes += 4;
    if (!(unit > 0) || !std::isfinite(unit)) {
      std::memset(bytes, unit == 0 ? 0 : 1, values.size());
      return;
    }
    const uint64_t first = static_cast<uint64_t>(index) * ((block_ + 3) / 4);  // of the block's random words
    PhiloxWords words = {};
    for (size_t i = 0; i < values.size(); ++i) {
      if (i % 4 == 0) words = RandomWords(key, first + i / 4);
      // floor(x + u), u uniform in [0, 1), is x in the mean.
      const double whole = std::floor(values[i] / unit + UniformFromWord(words[i % 4]));
      bytes[i] = static_cast<uint8_t>(static_cast<int8_t>(whole));
    }
  }
  void Decode(const uint8_t* bytes, absl::Span<double> values) const override {
    float unit = 0;
    std::memcpy(&unit, bytes, 4);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<double>(unit) * static_cast<int8_t>(bytes[4 + i]);
    }
  }
  bool IsFinite(const uint8_t* bytes, int64_t /*num_elements*/) const override {
    float unit = 0;
    std::memcpy(&unit, bytes, 4);
    return std::isfinite(unit);
  }

 private:
  const int64_t block_;
};

std::unique_ptr<Compressor> Make(const CommunicationMethod& method) {
  return std::make_unique<BlockCompressor>(
      std::make_unique<Int8Codec>(static_cast<int64_t>(method.Get("block"))),
      method.GetFlag("error_feedback"));
}

const RegisterCompressor kRegister({
    .name = "int8",
    .arguments =
        {
            {.name = "block",
             .type = MethodArgument::Type::kWholeNumber,
             .standard = 256,
             .least = 1,
             .most = kLargestBlock},
            ErrorFeedbackArgument(),
        },
    .make = Make,
});

}  // namespace
}  // namespace weft

// bf16 and f16: every element rounded to 16 bits.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "parallel/compression/methods/block_compressor.h"
#include "runtime/base/float16.h"

namespace weft {
namespace {

// f16 saturates: what is beyond its range is sent in the steps after, by error feedback.
float Narrowed(double value, Float16) {
  constexpr double kMost = 65504;
  return static_cast<float>(std::isfinite(value) ? std::clamp(value, -kMost, kMost) : value);
}
float Narrowed(double value, BFloat16) { return static_cast<float>(value); }

template <class Half>
class HalfCodec final : public BlockCodec {
 public:
  int64_t block() const override { return 256; }
  int64_t BlockBytes(int64_t num_elements) const override { return num_elements * 2; }

  void Encode(absl::Span<const double> values, const RandomKey& /*key*/, int64_t /*index*/,
              uint8_t* bytes) const override {
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t bits = Half(Narrowed(values[i], Half())).bits();
      std::memcpy(bytes + 2 * i, &bits, 2);
    }
  }
  void Decode(const uint8_t* bytes, absl::Span<double> values) const override {
    for (size_t i = 0; i < values.size(); ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, bytes + 2 * i, 2);
      values[i] = static_cast<float>(Half::FromBits(bits));
    }
  }
  bool IsFinite(const uint8_t* bytes, int64_t num_elements) const override {
    bool is_finite = true;
    for (int64_t i = 0; i < num_elements; ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, bytes + 2 * i, 2);
      is_finite &= std::isfinite(static_cast<float>(Half::FromBits(bits)));
    }
    return is_finite;
  }
};

template <class Half>
std::unique_ptr<Compressor> Make(const CommunicationMethod& method) {
  return std::make_unique<BlockCompressor>(std::make_unique<HalfCodec<Half>>(),
                                           method.GetFlag("error_feedback"));
}

const RegisterCompressor kRegisterBF16({
    .name = "bf16",
    .arguments = {ErrorFeedbackArgument()},
    .make = Make<BFloat16>,
});
const RegisterCompressor kRegisterF16({
    .name = "f16",
    .arguments = {ErrorFeedbackArgument()},
    .make = Make<Float16>,
});

}  // namespace
}  // namespace weft

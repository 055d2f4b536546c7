// onebit: the sign of each element, and a block's mean magnitude.
//
// Source: Seide et al., "1-bit stochastic gradient descent", 2014; with the scale of Karimireddy et al., "Error feedback
//         fixes SignSGD", 2019, by which |x - decoded|^2 = |x|^2 - |x|_1^2 / m.

#include <cmath>
#include <cstring>

#include "parallel/compression/methods/block_compressor.h"

namespace weft {
namespace {

constexpr int64_t kLargestBlock = int64_t{1} << 20;

class OneBitCodec final : public BlockCodec {
 public:
  explicit OneBitCodec(int64_t block) : block_(block) {}
  int64_t block() const override { return block_; }
  int64_t BlockBytes(int64_t num_elements) const override { return (num_elements + 7) / 8 + 4; }

  void Encode(absl::Span<const double> values, const RandomKey& /*key*/, int64_t /*index*/,
              uint8_t* bytes) const override {
    double sum = 0;  // not finite, if an element is not
    for (const double value : values) sum += std::abs(value);
    const auto scale = static_cast<float>(sum / values.size());
    std::memcpy(bytes, &scale, 4);
    bytes += 4;
    for (size_t first = 0; first < values.size(); first += 8) {
      const absl::Span<const double> eight = values.subspan(first, 8);
      unsigned signs = 0;
      for (size_t i = 0; i < eight.size(); ++i) signs |= static_cast<unsigned>(eight[i] < 0) << i;
      *bytes++ = static_cast<uint8_t>(signs);
    }
  }
  void Decode(const uint8_t* bytes, absl::Span<double> values) const override {
    float scale = 0;
    std::memcpy(&scale, bytes, 4);
    const double by_sign[] = {scale, -scale};
    bytes += 4;
    for (size_t first = 0; first < values.size(); first += 8) {
      const absl::Span<double> eight = values.subspan(first, 8);
      const unsigned signs = *bytes++;
      for (size_t i = 0; i < eight.size(); ++i) eight[i] = by_sign[signs >> i & 1];
    }
  }
  bool IsFinite(const uint8_t* bytes, int64_t /*num_elements*/) const override {
    float scale = 0;
    std::memcpy(&scale, bytes, 4);
    return std::isfinite(scale);
  }

 private:
  const int64_t block_;
};

std::unique_ptr<Compressor> Make(const CommunicationMethod& method) {
  return std::make_unique<BlockCompressor>(
      std::make_unique<OneBitCodec>(static_cast<int64_t>(method.Get("block"))),
      method.GetFlag("error_feedback"));
}

const RegisterCompressor kRegister({
    .name = "onebit",
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

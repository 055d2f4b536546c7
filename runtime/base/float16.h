#ifndef WEFT_RUNTIME_BASE_FLOAT16_H_
#define WEFT_RUNTIME_BASE_FLOAT16_H_

#include <bit>
#include <cstdint>

namespace weft {

// Both are constexpr throughout, which makes them callable from CUDA kernels too.

// bfloat16: the upper half of an IEEE binary32. A storage type; arithmetic is done in float.
// Conversion from float rounds to nearest, ties to even; NaN stays NaN.
class BFloat16 {
 public:
  BFloat16() = default;
  constexpr explicit BFloat16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    bits_ =
        static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
  static constexpr BFloat16 FromBits(uint16_t bits) {
    BFloat16 value;
    value.bits_ = bits;
    return value;
  }

  constexpr explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits_) << 16);
  }
  constexpr explicit operator double() const { return static_cast<float>(*this); }
  constexpr uint16_t bits() const { return bits_; }

 private:
  uint16_t bits_ = 0;
};

// IEEE binary16. A storage type; arithmetic is done in float. Rounds to nearest, ties to even; overflows to
// infinity; subnormals are kept.
class Float16 {
 public:
  Float16() = default;
  constexpr explicit Float16(float value) : bits_(Round(value)) {}
  static constexpr Float16 FromBits(uint16_t bits) {
    Float16 value;
    value.bits_ = bits;
    return value;
  }

  constexpr explicit operator float() const {
    // Placing exponent and mantissa in a binary32 leaves the value short of 2^112; one exact product mends
    // that for normals and subnormals alike.
    const uint32_t magnitude = static_cast<uint32_t>(bits_ & 0x7fffu) << 13;
    float value = std::bit_cast<float>(magnitude) * std::bit_cast<float>(0x77800000u);
    if ((bits_ & 0x7c00u) == 0x7c00u) value = std::bit_cast<float>(magnitude | 0x7f800000u);
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) |
                                (static_cast<uint32_t>(bits_ & 0x8000u) << 16));
  }
  constexpr explicit operator double() const { return static_cast<float>(*this); }
  constexpr uint16_t bits() const { return bits_; }

 private:
  static constexpr uint16_t Round(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | 0x7e00u;   // NaN
    if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and above round to infinity
    if (magnitude < 0x38800000u) {
      // Below 2^-14: adding 0.5 lets the float adder align and round the mantissa to a multiple of 2^-24.
      const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
      return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(aligned) - 0x3f000000u);
    }
    const uint32_t rebased = magnitude - 0x38000000u;
    return sign | static_cast<uint16_t>((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13);
  }

  uint16_t bits_ = 0;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_FLOAT16_H_

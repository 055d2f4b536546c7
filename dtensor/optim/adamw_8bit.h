#ifndef WEFT_DTENSOR_OPTIM_ADAMW_8BIT_H_
#define WEFT_DTENSOR_OPTIM_ADAMW_8BIT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/optim/adamw.h"

// AdamW whose moments take 8 bits per element: they are made whole for each parameter's update, and
// quantized again after it. Blocks of 256 elements share a scale, the largest magnitude among them; an
// element is the code of a value of the dynamic map, signed for m and unsigned for v
// (ops/optimizer/dynamic_map.h).
//
// A block is 256 elements in a row of one index of dim 0, or of a vector, of the whole parameter: where
// ranks cut it does not matter, so every layout has the same bits, and state is loaded on any mesh.
//
// What is less than about 2.8e-7 of its block's largest m is kept as 0. Of v 0 alone is: less than 3.3e-7 of the
// largest is kept as so much. An element whose gradients are always 1750 times smaller than its neighbours' takes
// smaller steps than AdamW's.
//
// State:  "<path>.m" and "<path>.v", u8, which lie as the parameter's state does; "<path>.m_scale" and
//         "<path>.v_scale", f32, per row and block, split as dim 0 is. Parameters of fewer than
//         `min_elements` elements have AdamW's.
// Cost:   4 bytes of scale per 256 elements beside the codes, more where rows are shorter; two moments of
//         one parameter at a time in its own dtype. Where other dims than the first are split, or a vector,
//         one all-reduce of the scales (max) per moment.
// Source: Dettmers et al., "8-bit optimizers via block-wise quantization", arXiv 2110.02861.
namespace weft {

struct AdamW8BitOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  int64_t min_elements = 4096;
  std::vector<ParameterGroup> groups = {};  // no matrix

  bool operator==(const AdamW8BitOptions&) const = default;
};

class AdamW8Bit : public AdamW {
 public:
  // Errors: InvalidArgument as AdamW, and for negative min_elements.
  AdamW8Bit(std::vector<Parameter*> parameters, const AdamW8BitOptions& options);

 protected:
  void Update(absl::Span<const int> indices, double lr, const DTensor& scale) override;
  std::vector<std::pair<std::string, DTensor>> Moments() const override;

 private:
  // One moment of each parameter, by index; undefined for those that AdamW has.
  struct Quantized {
    std::vector<DTensor> codes;
    std::vector<DTensor> scales;
    bool is_signed = true;
  };

  Quantized MakeQuantized(bool is_signed) const;
  DTensor Read(const Quantized& moment, int index) const;
  // Nothing if `scale` is not finite.
  void Write(const Quantized& moment, int index, const DTensor& x, const DTensor& scale) const;

  Quantized m_;
  Quantized v_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_OPTIM_ADAMW_8BIT_H_

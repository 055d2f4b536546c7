#include "dtensor/nn/attention.h"

#include "dtensor/functions.h"

namespace weft {
namespace {

int64_t HeadDim(int64_t dim, int64_t heads) {
  WEFT_REQUIRE(heads > 0 && dim % heads == 0, "attention: ", heads, " heads do not divide the model dim ",
               dim);
  return dim / heads;
}

}  // namespace

CausalSelfAttention::CausalSelfAttention(Module* parent, std::string name, int64_t dim, int64_t heads,
                                         const Initializer& residual_weight)
    : Module(parent, std::move(name)),
      qkv(this, "qkv", {dim}, {3, heads, HeadDim(dim, heads)}, {.column_dim = 1, .even_split = true}),
      proj(this, "proj", {heads, HeadDim(dim, heads)}, {dim},
           {.weight = residual_weight, .even_split = true}) {}

DTensor CausalSelfAttention::Forward(const DTensor& x) {
  // [b, s, d] -> [b, s, 3, h, e] -> [b, s, h, e] -> [b, s, d]
  return proj(PackedCausalAttention(qkv(x)));
}

}  // namespace weft

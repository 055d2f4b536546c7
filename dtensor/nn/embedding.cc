#include "dtensor/nn/embedding.h"

#include "dtensor/functions.h"

namespace weft {

Embedding::Embedding(Module* parent, std::string name, int64_t vocabulary, int64_t dim,
                     const Initializer& weight)
    : Module(parent, std::move(name)),
      weight(this, "weight",
             {.shape = {vocabulary, dim}, .initializer = weight, .shard_dims = {.vocabulary = 0}}) {}

DTensor Embedding::Forward(const DTensor& tokens) { return EmbeddingLookup(tokens, weight.Value()); }

DTensor TiedHead::Forward(const DTensor& x) {
  WEFT_REQUIRE(x.ndim() >= 1 && x.ndim() <= 6, "tied head '", path(), "': expected [..., d], got ",
               x.ToString());
  // [..., d] x [v, d] -> [..., v]
  const std::string lead = std::string("abcdef").substr(0, x.ndim() - 1);
  return Contract(x, lead + "y", table_.weight.Value(), "zy", lead + "z");
}

}  // namespace weft

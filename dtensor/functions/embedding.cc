#include "dtensor/functions/embedding.h"

#include "dtensor/dispatch.h"
#include "ops/attention/rotary.h"
#include "ops/indexing/embedding.h"

namespace weft {

DTensor EmbeddingLookup(const DTensor& tokens, const DTensor& table) {
  return Call(kEmbedding, {tokens, table});
}

DTensor Rotary(const DTensor& x, double base) { return Call(kRotary, {x}, {.base = base}); }

}  // namespace weft

#ifndef WEFT_DTENSOR_NN_EMBEDDING_H_
#define WEFT_DTENSOR_NN_EMBEDDING_H_

#include <string>

#include "dtensor/nn/module.h"

namespace weft {

// Looks tokens up in a table.
// Shape: tokens [...] (i32 or i64) -> [..., d]; weight [v, d].
class Embedding : public Module {
 public:
  Embedding(Module* parent, std::string name, int64_t vocabulary, int64_t dim,
            const Initializer& weight = Initializer::Normal(0, 0.02));

  Parameter weight;

 protected:
  DTensor Forward(const DTensor& tokens) override;
};

// Scores hidden states against an embedding's table: the output layer of models whose head is tied to their
// input. Owns no parameter; the table's gradient counts both uses.
// Shape:  x [..., d] -> [..., v].
class TiedHead : public Module {
 public:
  TiedHead(Module* parent, std::string name, const Embedding& table)
      : Module(parent, std::move(name)), table_(table) {}

 protected:
  DTensor Forward(const DTensor& x) override;

 private:
  const Embedding& table_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_NN_EMBEDDING_H_

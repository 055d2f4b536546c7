#include "dtensor/optim/newton_schulz.h"

#include <string>
#include <vector>

#include "dtensor/functions.h"

namespace weft {
namespace {

// The letters of contractions: of x's dims, and of the smaller side's of the matrix, thrice: g is [b, s, s'].
struct Letters {
  std::string x;
  std::string batch;
  std::string side[3];
  std::string x_beside;  // x with the smaller side's letters replaced by side[1]
};

// `role`: of the smaller side.
Letters LettersOf(absl::string_view roles, char role) {
  Letters letters;
  char next = static_cast<char>('a' + roles.size());
  for (size_t dim = 0; dim < roles.size(); ++dim) {
    const char letter = static_cast<char>('a' + dim);
    letters.x.push_back(letter);
    if (roles[dim] == 'b') letters.batch.push_back(letter);
    char beside = letter;
    if (roles[dim] == role) {
      beside = next++;
      letters.side[0].push_back(letter);
      letters.side[1].push_back(beside);
      letters.side[2].push_back(next++);
    }
    letters.x_beside.push_back(beside);
  }
  return letters;
}

}  // namespace

DTensor NewtonSchulz(const DTensor& x, absl::string_view roles, const NewtonSchulzOptions& options) {
  WEFT_REQUIRE(static_cast<int>(roles.size()) == x.ndim(), "NewtonSchulz: expected a role per dim of ",
               x.ToString(), ", got '", roles, "'");
  WEFT_REQUIRE(options.steps >= 0, "NewtonSchulz: expected at least 0 steps, got ", options.steps);
  int64_t rows = 1, columns = 1;
  std::vector<int> matrix_dims;
  for (int dim = 0; dim < x.ndim(); ++dim) {
    if (roles[dim] == 'i') rows *= x.shape()[dim];
    if (roles[dim] == 'o') columns *= x.shape()[dim];
    if (roles[dim] != 'b') matrix_dims.push_back(dim);
  }
  if (x.shape().num_elements() == 0) return x;
  const Letters l = LettersOf(roles, rows <= columns ? 'i' : 'o');
  const std::string g01 = l.batch + l.side[0] + l.side[1];
  const std::string g12 = l.batch + l.side[1] + l.side[2];
  const std::string g02 = l.batch + l.side[0] + l.side[2];
  const DTensor norm = Norm(x, 2, matrix_dims, /*keep_dims=*/true);
  DTensor y = Div(x, Maximum(norm, options.eps));
  for (int step = 0; step < options.steps; ++step) {
    // [b, s, l] x [b, s', l] -> [b, s, s'], where s is the smaller side and l the other
    const DTensor g = Contract(y, l.x, y, l.x_beside, g01);
    // [b, s, s'] x [b, s', s''] -> [b, s, s'']
    const DTensor h = Add(Scale(g, options.b), Scale(Contract(g, g01, g, g12, g02), options.c));
    // [b, s, s'] x [b, s', l] -> [b, s, l]
    y = Add(Scale(y, options.a), Contract(h, g01, y, l.x_beside, l.x));
  }
  return y;
}

}  // namespace weft

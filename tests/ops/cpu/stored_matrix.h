#ifndef WEFT_TESTS_OPS_CPU_STORED_MATRIX_H_
#define WEFT_TESTS_OPS_CPU_STORED_MATRIX_H_

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "ops/cpu/product/gemm.h"

namespace weft {

// A matrix of numbers in [-1, 1) by `seed`, as products take one: `gap` elements more between its rows, or
// its columns where it is stored transposed. Owns its elements.
template <class T>
struct StoredMatrix {
  std::vector<T> data;
  int64_t rows, cols;
  bool transposed;
  int64_t ld;

  StoredMatrix(int64_t rows_, int64_t cols_, bool transposed_, int64_t gap, uint32_t seed)
      : rows(rows_),
        cols(cols_),
        transposed(transposed_),
        ld(std::max<int64_t>((transposed_ ? rows_ : cols_) + gap, 1)) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (int64_t i = 0; i < (transposed ? cols : rows) * ld; ++i) data.push_back(T(uniform(random)));
  }
  GemmMatrix<T> matrix() const { return {data.data(), ld, transposed}; }
  double At(int64_t i, int64_t j) const {
    return static_cast<double>(data[transposed ? j * ld + i : i * ld + j]);
  }
};

// Element (i, j) of a b, summed in double.
template <class T>
double Product(const StoredMatrix<T>& a, const StoredMatrix<T>& b, int64_t i, int64_t j) {
  double sum = 0;
  for (int64_t p = 0; p < a.cols; ++p) sum += a.At(i, p) * b.At(p, j);
  return sum;
}

}  // namespace weft

#endif  // WEFT_TESTS_OPS_CPU_STORED_MATRIX_H_

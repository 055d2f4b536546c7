#include "parallel/compression/methods/orthogonalize.h"

#include <cmath>
#include <utility>
#include <vector>

namespace weft {
namespace {

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// `least`: of what has to be left of a column's length.
template <class T>
void OrthogonalizeBy(absl::Span<T> matrix, int64_t num_columns, double least) {
  const auto num_rows = static_cast<int64_t>(matrix.size()) / num_columns;
  std::vector<std::vector<double>> basis;
  for (int64_t column = 0; column < num_columns; ++column) {
    std::vector<double> vector(num_rows);
    for (int64_t row = 0; row < num_rows; ++row) vector[row] = matrix[row * num_columns + column];
    const double length = std::sqrt(Dot(vector, vector));
    for (int pass = 0; pass < 2; ++pass) {
      for (const std::vector<double>& other : basis) {
        const double share = Dot(vector, other);
        for (int64_t row = 0; row < num_rows; ++row) vector[row] -= share * other[row];
      }
    }
    const double left = std::sqrt(Dot(vector, vector));
    const bool is_new = left > least * length;
    for (double& value : vector) value = is_new ? value / left : 0;
    for (int64_t row = 0; row < num_rows; ++row) {
      matrix[row * num_columns + column] = static_cast<T>(vector[row]);
    }
    if (is_new) basis.push_back(std::move(vector));
  }
}

}  // namespace

void Orthogonalize(absl::Span<float> matrix, int64_t num_columns) {
  OrthogonalizeBy(matrix, num_columns, 1e-5);
}
void Orthogonalize(absl::Span<double> matrix, int64_t num_columns) {
  OrthogonalizeBy(matrix, num_columns, 1e-12);
}

}  // namespace weft

// What a dataset gives for one sample, for tests.

#ifndef WEFT_TESTS_RUNTIME_DATA_DATASET_READ_SAMPLE_H_
#define WEFT_TESTS_RUNTIME_DATA_DATASET_READ_SAMPLE_H_

#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/data/dataset/dataset.h"

namespace weft {

// The i32 elements of each field. What Read leaves out is -7.
inline std::vector<std::vector<int32_t>> ReadSample(const Dataset& dataset, int64_t index) {
  std::vector<std::vector<int32_t>> values;
  for (const SampleField& field : dataset.fields()) {
    values.emplace_back(static_cast<size_t>(field.shape.num_elements()), -7);
  }
  std::vector<FieldBytes> bytes;
  for (std::vector<int32_t>& field : values) {
    bytes.emplace_back(reinterpret_cast<uint8_t*>(field.data()), field.size() * sizeof(int32_t));
  }
  dataset.Read(index, bytes);
  return values;
}

}  // namespace weft

#endif  // WEFT_TESTS_RUNTIME_DATA_DATASET_READ_SAMPLE_H_

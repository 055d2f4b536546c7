// What a program trains on, sample by sample.

#ifndef WEFT_RUNTIME_DATA_DATASET_DATASET_H_
#define WEFT_RUNTIME_DATA_DATASET_DATASET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "runtime/base/dtype.h"
#include "runtime/tensor/shape.h"

namespace weft {

// One field of every sample: {"inputs", i32, [64]}. A value.
struct SampleField {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape = {};

  int64_t num_bytes() const { return shape.num_elements() * ItemSize(dtype); }

  bool operator==(const SampleField&) const = default;
};

// Where a field of a sample is to be written: row-major elements, aligned to those. Not owned.
using FieldBytes = absl::Span<uint8_t>;

// Elements of type T in a field's bytes, which are of that type (SampleField::dtype).
template <class T>
absl::Span<T> ElementsOf(FieldBytes bytes) {
  return absl::MakeSpan(reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T));
}

// A number of samples that are found by index, all of one type. Immutable. Derive from it to bring data of one's own: a Loader
// reads it from threads of its own, and says which sample it was when Read throws.
//
// Threads: any, at once.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual int64_t num_samples() const = 0;
  // The fields of every sample, in the order in which Read writes them; at least one.
  virtual const std::vector<SampleField>& fields() const = 0;

  // Writes sample `index` of [0, num_samples()): field f, all of it, to `fields[f]`.
  // Errors: whatever it finds. It need not say which sample it was.
  virtual void Read(int64_t index, absl::Span<const FieldBytes> fields) const = 0;

  // Where a sample comes from, for people: the file and the record, "'books.bin', tokens [640, 705)".
  virtual std::string NameOf(int64_t index) const = 0;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_DATA_DATASET_DATASET_H_

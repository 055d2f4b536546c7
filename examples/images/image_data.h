// Labelled images of one channel, as Fashion-MNIST has them, and batches of them over a mesh.

#ifndef WEFT_EXAMPLES_IMAGES_IMAGE_DATA_H_
#define WEFT_EXAMPLES_IMAGES_IMAGE_DATA_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "dtensor/dtensor.h"

namespace weft {

struct ImageSet {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<uint8_t> pixels;  // [count, rows, columns]
  std::vector<uint8_t> labels;  // [count]

  int64_t count() const { return static_cast<int64_t>(labels.size()); }
};

// Reads FOLDER/NAME-images-idx3-ubyte and FOLDER/NAME-labels-idx1-ubyte; `name` is "train" or "t10k".
// Errors: as ReadIdxFile; InvalidArgument if the two do not go together.
ImageSet ReadImageSet(const std::string& folder, const std::string& name);

// A text of how many images there are, of their extents, and of a checksum of pixels and labels.
std::string Fingerprint(const ImageSet& set);

// One more than the largest label.
int64_t NumClasses(const ImageSet& set);

struct ImageBatch {
  DTensor images;  // f32 [b, 1, h, w], mean 0 and deviation 1 over Fashion-MNIST
  DTensor labels;  // i32 [b]
};

// `batch` images over the mesh, split as `batch_axes` says along dim 0; `index(i)` is which image is the i-th. Each rank
// reads its rows alone.
ImageBatch MakeImageBatch(const IntrusivePtr<MeshContext>& context, const AxisList& batch_axes,
                          const ImageSet& set, int64_t batch, absl::FunctionRef<int64_t(int64_t i)> index);

// Which image is the i-th of a training step's batch: by (seed, step, i) alone, never by the rank that asks.
int64_t TrainIndex(const ImageSet& set, uint64_t seed, int64_t step, int64_t i);

}  // namespace weft

#endif  // WEFT_EXAMPLES_IMAGES_IMAGE_DATA_H_

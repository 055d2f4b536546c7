#include "examples/images/image_data.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "mesh/shard_math.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"
#include "runtime/base/philox.h"
#include "runtime/data/idx_file.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// Of Fashion-MNIST's training images, in parts of 255.
constexpr float kMean = 0.2860f;
constexpr float kDeviation = 0.3530f;

DTensor Rows(const IntrusivePtr<MeshContext>& context, const Layout& layout, const Shape& shape,
             const Tensor& host) {
  const Tensor piece = Tensor::Empty(context->allocator(), host.dtype(), host.shape());
  CopyTensor(host, piece);
  return DTensor::FromLocal(context, piece, layout, shape);
}

}  // namespace

ImageSet ReadImageSet(const std::string& folder, const std::string& name) {
  const IdxArray images = ReadIdxFile(folder + "/" + name + "-images-idx3-ubyte");
  IdxArray labels = ReadIdxFile(folder + "/" + name + "-labels-idx1-ubyte");
  WEFT_REQUIRE(images.extents.size() == 3 && labels.extents.size() == 1 &&
                   images.extents[0] == labels.extents[0] && labels.extents[0] > 0,
               "'", folder, "': expected as many images as labels in the files of '", name,
               "', at least one, got [", absl::StrJoin(images.extents, ", "), "] of pixels and [",
               absl::StrJoin(labels.extents, ", "), "] of labels");
  return {.rows = images.extents[1],
          .columns = images.extents[2],
          .pixels = images.values,
          .labels = std::move(labels.values)};
}

std::string Fingerprint(const ImageSet& set) {
  const uint64_t pixels = Crc64(set.pixels.data(), static_cast<int64_t>(set.pixels.size()));
  const uint64_t crc = Crc64(set.labels.data(), set.count(), /*before=*/pixels);
  return absl::StrCat(set.count(), "x", set.rows, "x", set.columns, " ", CrcText(crc));
}

int64_t NumClasses(const ImageSet& set) {
  return *std::max_element(set.labels.begin(), set.labels.end()) + 1;
}

ImageBatch MakeImageBatch(const IntrusivePtr<MeshContext>& context, const AxisList& batch_axes,
                          const ImageSet& set, int64_t batch, absl::FunctionRef<int64_t(int64_t i)> index) {
  const DeviceMesh& mesh = context->mesh();
  const auto split = [&](int ndim) {
    Layout layout(ndim, mesh.num_axes());
    for (const int axis : batch_axes) layout = layout.PlacedAlong(axis, Shard(0));
    return layout;
  };
  const Shape shape = {batch, 1, set.rows, set.columns};
  const ShardBox box = LocalBox(shape, split(4), mesh, context->coordinate());
  const int64_t size = set.rows * set.columns;
  std::vector<float> pixels;
  std::vector<int32_t> labels;
  pixels.reserve(box.shape.num_elements());
  for (int64_t i = box.offset[0]; i < box.offset[0] + box.shape[0]; ++i) {
    const int64_t image = index(i);
    labels.push_back(set.labels[image]);
    for (int64_t pixel = image * size; pixel < (image + 1) * size; ++pixel) {
      pixels.push_back((static_cast<float>(set.pixels[pixel]) / 255 - kMean) / kDeviation);
    }
  }
  return {.images = Rows(context, split(4), shape, Tensor::FromValues<float>(box.shape, pixels)),
          .labels = Rows(context, split(1), {batch}, Tensor::FromValues<int32_t>({box.shape[0]}, labels))};
}

int64_t TrainIndex(const ImageSet& set, uint64_t seed, int64_t step, int64_t i) {
  const RandomKey key = {.seed = seed, .stream = StreamOf("images"), .step = static_cast<uint64_t>(step)};
  const uint64_t word = RandomWords(key, static_cast<uint64_t>(i) / 4)[i % 4];
  return static_cast<int64_t>(word * static_cast<uint64_t>(set.count()) >> 32);
}

}  // namespace weft

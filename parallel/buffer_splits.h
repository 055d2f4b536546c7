// How the entries of a plan split a model's buffers.

#ifndef WEFT_PARALLEL_BUFFER_SPLITS_H_
#define WEFT_PARALLEL_BUFFER_SPLITS_H_

#include <optional>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "parallel/model_tree.h"
#include "parallel/parameter_splits.h"
#include "parallel/style.h"
#include "runtime/tensor/shape.h"

namespace weft {

// What a plan means for one buffer. A value.
struct ResolvedBuffer {
  std::string path;
  int module = 0;  // that owns it, by number
  Shape shape = {};
  std::vector<Style> styles = {};  // that split it, in the order of the plan
  Layout layout = {};
  std::optional<DType> dtype =
      std::nullopt;  // of one whose spec gives none; ModuleBuffer::DefaultDType if not given

  bool operator==(const ResolvedBuffer&) const = default;
};

// A buffer is replicated, but for what styles split that split the module's own parameters (ColumnParallel, ...): along
// the dims that the buffer declares for them, so that the statistics of a layer lie as its weights. In the order of the
// plan, the first outermost. Views the tree and the meshes.
class BufferSplits {
 public:
  // `meshes`: of each module.
  BufferSplits(const ModelTree& tree, const std::vector<DeviceMesh>& meshes);

  // Whether it splits one of them.
  // Errors: InvalidArgument that starts with `where`, if another style splits one of the buffers over the axis.
  bool Add(int module, const StyleRules& rules, const Style& style, const std::string& where);

  // Of every buffer, in order of registration.
  std::vector<ResolvedBuffer> Resolve() const;

 private:
  const ModelTree& tree_;
  const std::vector<DeviceMesh>& meshes_;
  std::vector<ResolvedBuffer> buffers_;
  std::vector<std::vector<ParameterSplit>> splits_;  // of each
  std::vector<size_t> firsts_;                       // of each module, its own first buffer
};

}  // namespace weft

#endif  // WEFT_PARALLEL_BUFFER_SPLITS_H_

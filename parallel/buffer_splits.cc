#include "parallel/buffer_splits.h"

#include "runtime/base/error.h"

namespace weft {

BufferSplits::BufferSplits(const ModelTree& tree, const std::vector<DeviceMesh>& meshes)
    : tree_(tree), meshes_(meshes) {
  for (int module = 0; module < std::ssize(tree.modules()); ++module) {
    firsts_.push_back(buffers_.size());
    for (const ModuleBuffer* buffer : tree.modules()[module]->buffers()) {
      buffers_.push_back({.path = buffer->path(), .module = module, .shape = buffer->spec().shape});
    }
  }
  splits_.resize(buffers_.size());
}

bool BufferSplits::Add(int module, const StyleRules& rules, const Style& style, const std::string& where) {
  if (rules.own_dim == nullptr || rules.split == nullptr) return false;
  bool splits_any = false;
  const int axis = meshes_[module].FindAxis(style.axis);
  const std::vector<ModuleBuffer*>& own = tree_.modules()[module]->buffers();
  for (size_t i = 0; i < own.size(); ++i) {
    const BufferSpec& spec = own[i]->spec();
    const int dim = rules.own_dim({.shape = spec.shape, .shard_dims = spec.shard_dims});
    if (dim < 0) continue;
    ResolvedBuffer& buffer = buffers_[firsts_[module] + i];
    std::vector<ParameterSplit>& splits = splits_[firsts_[module] + i];
    for (const ParameterSplit& other : splits) {
      WEFT_REQUIRE(other.axis != axis, where, ": '", buffer.path, "' is already split over axis '",
                   style.axis, "' by another entry");
    }
    splits.push_back({.axis = axis, .dim = dim, .columns = rules.split(style).columns});
    buffer.styles.push_back(style);
    splits_any = true;
  }
  return splits_any;
}

std::vector<ResolvedBuffer> BufferSplits::Resolve() const {
  std::vector<ResolvedBuffer> buffers = buffers_;
  for (size_t i = 0; i < buffers.size(); ++i) {
    buffers[i].layout = LayoutsOf(buffers[i].shape, splits_[i], meshes_[buffers[i].module]).at_rest;
  }
  return buffers;
}

}  // namespace weft

// What a plan's Communication means for one parameter.

#ifndef WEFT_PARALLEL_COMPRESSION_PARAMETER_COMMUNICATION_H_
#define WEFT_PARALLEL_COMPRESSION_PARAMETER_COMMUNICATION_H_

#include <string>
#include <vector>

#include "dtensor/nn/parameter.h"
#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "parallel/compression/communication_method.h"
#include "parallel/style.h"

namespace weft {

// How a parameter's gradient is summed.
struct ParameterCommunication {
  CommunicationMethod method = {};
  AxisList axes = {};  // over which, ascending; empty: over none

  bool compresses() const { return !method.is_none() && !axes.empty(); }
  bool operator==(const ParameterCommunication&) const = default;
};

// By the styles that reach the parameter: the method of its Communication, over the axes of the styles that reach below
// and leave it whole (DataParallel). Tensor-parallel axes sum as ever.
// Errors: InvalidArgument naming the parameter and the axis, where such a style splits the gradient (FullyShard,
//         shard_state, shard_gradient): it is reduce-scattered, and methods make whole sums; and where stages of a
//         pipeline have it.
ParameterCommunication CommunicationOf(const std::string& path, const std::vector<Style>& styles,
                                       const ParameterLayouts& layouts, const std::vector<int>& stages,
                                       const DeviceMesh& mesh);

}  // namespace weft

#endif  // WEFT_PARALLEL_COMPRESSION_PARAMETER_COMMUNICATION_H_

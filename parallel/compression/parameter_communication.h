// What a plan's Communication means for one parameter.

#ifndef WEFT_PARALLEL_COMPRESSION_PARAMETER_COMMUNICATION_H_
#define WEFT_PARALLEL_COMPRESSION_PARAMETER_COMMUNICATION_H_

#include <string>
#include <vector>

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
// (DataParallel, FullyShard). Tensor-parallel axes sum as ever.
//
// `stages`: of a pipeline that have the parameter, `stage_ranks` the index along its axis of each stage's rank.
// Errors: InvalidArgument naming the parameter, where several ranks of a pipeline have it: residuals of stages that sum
//         the same gradient would go under one name.
ParameterCommunication CommunicationOf(const std::string& path, const std::vector<Style>& styles,
                                       const std::vector<int>& stages, const std::vector<int>& stage_ranks,
                                       const DeviceMesh& mesh);

}  // namespace weft

#endif  // WEFT_PARALLEL_COMPRESSION_PARAMETER_COMMUNICATION_H_

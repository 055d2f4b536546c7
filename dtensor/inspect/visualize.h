#ifndef WEFT_DTENSOR_INSPECT_VISUALIZE_H_
#define WEFT_DTENSOR_INSPECT_VISUALIZE_H_

#include <string>

#include "dtensor/dtensor.h"
#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// Draws which rank holds which part of a tensor, as text. One or two dims as a grid with element ranges at
// its sides (half open: "0:3" is 0, 1, 2), others as a list of boxes. In a cell stand the ranks that hold it:
//
//   0          rank 0 alone                  0+1    a term each, to be added (max(0,1), avg(0,1), ...)
//   0=2        copies on ranks 0 and 2       0+1=2+3    copies of such sums
//
// Long lists of copies or terms are shortened in the middle. Ranks that hold no element are named below.
// Cost: none; works on layouts of any mesh, also of ranks that do not exist.
std::string Visualize(const TensorType& type, const Layout& layout, const DeviceMesh& mesh);
std::string Visualize(const DTensor& tensor);

// The same as a picture: an SVG document with one panel per rank, arranged as the mesh is (columns: the last
// axis; rows: the one before; blocks side by side: the first of three). A panel is the whole tensor, to scale
// within limits; filled in the rank's colour is what it holds, hatched if it is a term of a reduction. Of a
// tensor with more than two dims the panel shows two, those that are split first.
// Errors: InvalidArgument for a mesh of more than three axes.
std::string VisualizeSvg(const TensorType& type, const Layout& layout, const DeviceMesh& mesh);
std::string VisualizeSvg(const DTensor& tensor);

}  // namespace weft

#endif  // WEFT_DTENSOR_INSPECT_VISUALIZE_H_

#ifndef WEFT_DTENSOR_FUNCTIONS_CREATION_H_
#define WEFT_DTENSOR_FUNCTIONS_CREATION_H_

#include "absl/strings/string_view.h"
#include "dtensor/dtensor.h"

// Making tensors: only this rank's piece is made. The layout is replicated unless given.
namespace weft {

DTensor Full(const IntrusivePtr<MeshContext>& context, DType dtype, const Shape& shape, double value);
DTensor Full(const IntrusivePtr<MeshContext>& context, DType dtype, const Shape& shape, double value,
             const Layout& layout);
// Standard normal elements of the named stream of the context's seed: the same on every layout.
DTensor RandomNormal(const IntrusivePtr<MeshContext>& context, DType dtype, const Shape& shape,
                     const Layout& layout, absl::string_view stream);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_CREATION_H_

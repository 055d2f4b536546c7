#ifndef WEFT_DTENSOR_TAPE_GRADIENT_LAYOUT_H_
#define WEFT_DTENSOR_TAPE_GRADIENT_LAYOUT_H_

#include "mesh/layout.h"

namespace weft {

// Where a gradient goes that arrived as `arriving`, if its source lay as `source`: along each axis to the
// source's placement, or, where the source was Partial, as it arrived (a Partial gradient of a Partial source
// stays unreduced). So it does too along axes where a call took a Replicate source as it was (`used`), though
// it moved it along others: otherwise the bias of a row-parallel product would be reduced here, and not once
// at its leaf.
Layout GradientLayout(const Layout& source, const Layout& arriving, const Layout* used = nullptr);

}  // namespace weft

#endif  // WEFT_DTENSOR_TAPE_GRADIENT_LAYOUT_H_

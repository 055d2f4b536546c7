#ifndef WEFT_DTENSOR_FUNCTIONS_H_
#define WEFT_DTENSOR_FUNCTIONS_H_

// The functions that models are written with, by family. Each is one op or a few (ops/<family>/ says what it
// computes and how it may be split); any layout is taken, and operands are redistributed where the op's
// sharding rule needs it. Letters in shapes: b batch, s sequence, d model, h heads, e head dim, v vocabulary;
// `...` is any number of leading dims.

#include "dtensor/dispatch.h"
#include "dtensor/functions/activation.h"
#include "dtensor/functions/attention.h"
#include "dtensor/functions/collectives.h"
#include "dtensor/functions/compare.h"
#include "dtensor/functions/convolution.h"
#include "dtensor/functions/creation.h"
#include "dtensor/functions/dropout.h"
#include "dtensor/functions/einsum.h"
#include "dtensor/functions/elementwise.h"
#include "dtensor/functions/embedding.h"
#include "dtensor/functions/indexing.h"
#include "dtensor/functions/interpolate.h"
#include "dtensor/functions/linear_algebra.h"
#include "dtensor/functions/loss.h"
#include "dtensor/functions/normalization.h"
#include "dtensor/functions/pooling.h"
#include "dtensor/functions/reduce.h"
#include "dtensor/functions/select.h"
#include "dtensor/functions/selection.h"
#include "dtensor/functions/shape.h"
#include "dtensor/functions/slices.h"
#include "dtensor/functions/sort.h"
#include "dtensor/functions/values_text.h"

#endif  // WEFT_DTENSOR_FUNCTIONS_H_

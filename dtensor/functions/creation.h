#ifndef WEFT_DTENSOR_FUNCTIONS_CREATION_H_
#define WEFT_DTENSOR_FUNCTIONS_CREATION_H_

#include "absl/strings/string_view.h"
#include "dtensor/dtensor.h"

// Making tensors: on every layout, only this rank's piece is made. Without a layout (a default Layout) the
// tensor is replicated.
// Cost:   no communication.
// Errors: InvalidArgument for a Partial layout, a negative extent, or a dtype that the function does not
//         make.
namespace weft {

// Every element `value`; of integers, cut to a whole number in their range.
// Errors: InvalidArgument for a finite value that would be infinite in a floating dtype, as 1e9 in f16.
DTensor Full(const IntrusivePtr<MeshContext>& context, DType dtype, const Shape& shape, double value,
             const Layout& layout = {});
DTensor Zeros(const IntrusivePtr<MeshContext>& context, DType dtype, const Shape& shape,
              const Layout& layout = {});
DTensor Ones(const IntrusivePtr<MeshContext>& context, DType dtype, const Shape& shape,
             const Layout& layout = {});

// start, start + step, ... below `end` (above it, for a negative step): ceil((end - start) / step) elements.
// Errors: InvalidArgument for a step of 0 or away from `end`, more elements than int64 counts, bools, and integers from numbers not
//         whole.
DTensor Arange(const IntrusivePtr<MeshContext>& context, DType dtype, double start, double end,
               double step = 1, const Layout& layout = {});

// Random elements are a function of the context's seed and step, a stream, and the element's global index:
// the same bits on every layout. The stream is that of a name, or, unless one is given, of the module path
// and of how many times the module has asked in this forward, as Dropout's. Outside of modules' calls it is of how many
// draws there have been since the step was set (RankState::set_step): models that are called in between change nothing, and
// ranks that are to draw alike have drawn as often. Each Trainer::Step begins at the first draw of its step again: two
// trainers that are at one step draw alike, unless their streams have names or a FoldInGuard stands in the loss of one. A
// FoldInGuard makes all these streams others. Under a BatchOffsetGuard, which a loop of microbatches holds, the index along
// dim 0 is the position in the global batch; make what has no batch dim under a guard of offset 0.
//
// Uniform in [0, 1); floating dtypes.
DTensor RandomUniform(const IntrusivePtr<MeshContext>& context, DType dtype, const Shape& shape,
                      const Layout& layout = {}, absl::string_view stream = "");
// Standard normal; floating dtypes.
DTensor RandomNormal(const IntrusivePtr<MeshContext>& context, DType dtype, const Shape& shape,
                     const Layout& layout = {}, absl::string_view stream = "");
// 1 with the given probability, else 0; any dtype.
// Errors: InvalidArgument for a probability outside [0, 1].
DTensor Bernoulli(const IntrusivePtr<MeshContext>& context, DType dtype, const Shape& shape,
                  double probability, const Layout& layout = {}, absl::string_view stream = "");
// The same with a probability of its own for every element; carries no gradient.
// Errors: InvalidArgument that names the first probability outside [0, 1]; on a GPU the element is NaN instead.
DTensor Bernoulli(const DTensor& probability, absl::string_view stream = "");

// Of x's type, on x's layout: replicated along axes where x is Partial.
DTensor FullLike(const DTensor& x, double value);
DTensor ZerosLike(const DTensor& x);
DTensor OnesLike(const DTensor& x);
DTensor RandomUniformLike(const DTensor& x, absl::string_view stream = "");
DTensor RandomNormalLike(const DTensor& x, absl::string_view stream = "");

// For functions that fill with a number.
// Errors: InvalidArgument, which names the function, as Full's for a value.
void RequireFinite(absl::string_view function, DType dtype, double number);

// A scalar of x's dtype: how a number joins an op on tensors, by broadcasting.
// Errors: InvalidArgument for a number that the dtype cannot hold: of integers one that is not whole or too
//         large, of floating dtypes a finite one that would be infinite there, as 1e9 in f16.
DTensor NumberLike(const DTensor& x, double number);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_CREATION_H_

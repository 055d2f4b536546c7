#ifndef WEFT_TESTS_DTENSOR_SHARDED_VALUES_H_
#define WEFT_TESTS_DTENSOR_SHARDED_VALUES_H_

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "dtensor/dtensor.h"
#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "runtime/comm/ledger.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// Runs `body` on thread ranks, as many as the mesh has ("a=2,b=2"; "" is one device), each with the mesh
// bound.
void OnMesh(absl::string_view mesh, const std::function<void(const IntrusivePtr<MeshContext>&)>& body);

// The message of the Error that `function` throws; "nothing was thrown" if none.
std::string ErrorOf(const std::function<void()>& function);

// Every layout over Replicate, Shard of each dim, and Partial of each of `kinds`, with every order in which
// axes nest on one dim. Kinds that cannot mix are left out.
std::vector<Layout> AllLayouts(const DeviceMesh& mesh, int ndim, const std::vector<ReduceOp>& kinds);
// One of them; Partial(sum) only if `partial`.
Layout RandomLayout(const DeviceMesh& mesh, int ndim, std::mt19937_64& random, bool partial);

// f64, uniform in [low, high): the same for the same seed.
Tensor RandomF64(const Shape& shape, uint64_t seed, double low = -1, double high = 1);
// 1 + 7 i mod 31 in row-major order: whole numbers that every dtype holds.
Tensor WholeNumbers(DType dtype, const Shape& shape);
Tensor FromDoubles(DType dtype, const Shape& shape, const std::vector<double>& values);

// What `rank` holds of `full`: cut by the text of the chunk rule, axis by axis, without shard_math. Of
// Partial axes: this rank's term. Terms differ in size and sign; those of whole numbers are whole (product:
// powers of two), so that they reduce exactly.
Tensor PieceOf(const Tensor& full, const Layout& layout, const DeviceMesh& mesh, int rank);
// The reduction of the terms of all members of a Partial group, in their order.
Tensor ReduceTerms(const std::vector<Tensor>& terms, const Layout& layout, const DeviceMesh& mesh);

// `full`, laid as `layout`, without any communication.
DTensor Lay(const IntrusivePtr<MeshContext>& context, const Tensor& full, const Layout& layout);
DTensor Lay(const IntrusivePtr<MeshContext>& context, const Tensor& full, absl::string_view layout);
// The same elements in column-major order, as a view: not contiguous, if it has two dims or more.
Tensor ColumnMajor(const Tensor& tensor);

// "[dp, -] P{tp}".
std::string LayoutText(const DTensor& tensor);
// "all_reduce dp grad, all_gather tp param": the calls that this rank's ledger holds, those of one kind,
// axes, purpose and module together, in the order of the first of each.
std::string LedgerText(MeshContext& context);

}  // namespace weft

#endif  // WEFT_TESTS_DTENSOR_SHARDED_VALUES_H_

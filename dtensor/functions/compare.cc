#include "dtensor/functions/compare.h"

#include "dtensor/dispatch.h"
#include "dtensor/functions/autocast.h"
#include "dtensor/functions/creation.h"
#include "ops/elementwise/compare.h"
#include "ops/elementwise/logical.h"

namespace weft {

DTensor Equal(const DTensor& a, const DTensor& b) { return CallWider(kEqual, a, b); }
DTensor NotEqual(const DTensor& a, const DTensor& b) { return CallWider(kNotEqual, a, b); }
DTensor Less(const DTensor& a, const DTensor& b) { return CallWider(kLess, a, b); }
DTensor LessEqual(const DTensor& a, const DTensor& b) { return CallWider(kLessEqual, a, b); }
DTensor Greater(const DTensor& a, const DTensor& b) { return CallWider(kGreater, a, b); }
DTensor GreaterEqual(const DTensor& a, const DTensor& b) { return CallWider(kGreaterEqual, a, b); }

DTensor Equal(const DTensor& x, double number) { return Equal(x, NumberLike(x, number)); }
DTensor NotEqual(const DTensor& x, double number) { return NotEqual(x, NumberLike(x, number)); }
DTensor Less(const DTensor& x, double number) { return Less(x, NumberLike(x, number)); }
DTensor LessEqual(const DTensor& x, double number) { return LessEqual(x, NumberLike(x, number)); }
DTensor Greater(const DTensor& x, double number) { return Greater(x, NumberLike(x, number)); }
DTensor GreaterEqual(const DTensor& x, double number) { return GreaterEqual(x, NumberLike(x, number)); }

DTensor IsNan(const DTensor& x) { return Call(kIsNan, {x}); }
DTensor IsFinite(const DTensor& x) { return Call(kIsFinite, {x}); }

DTensor LogicalAnd(const DTensor& a, const DTensor& b) { return Call(kLogicalAnd, {a, b}); }
DTensor LogicalOr(const DTensor& a, const DTensor& b) { return Call(kLogicalOr, {a, b}); }
DTensor LogicalXor(const DTensor& a, const DTensor& b) { return Call(kLogicalXor, {a, b}); }
DTensor LogicalNot(const DTensor& x) { return Call(kLogicalNot, {x}); }

}  // namespace weft

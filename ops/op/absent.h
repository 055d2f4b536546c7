#ifndef WEFT_OPS_OP_ABSENT_H_
#define WEFT_OPS_OP_ABSENT_H_

namespace weft {

// What a kernel writes for an element that another rank holds and gives, where the outputs are Partial(sum):
// -0.0, not 0, is what changes no floating value that it is added to, -0.0 included.
inline constexpr double kAbsent = -0.0;

// What a kernel leaves in a place of its result to which nothing goes: kAbsent if the result is to be added to another
// tensor, whose -0.0 stays so, else 0.
constexpr double EmptyPlace(bool to_add) { return to_add ? kAbsent : 0.0; }

}  // namespace weft

#endif  // WEFT_OPS_OP_ABSENT_H_

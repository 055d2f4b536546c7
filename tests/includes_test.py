"""Sources compile without the headers that //third_party/precompiled puts before them, as outside of this tree.

Of each name that one of those headers declares, a source or header that uses it reads that header, or a header of the tree
that does. Prints path: header of each break. First it shows on a planted tree that it can.
"""

import glob
import os
import re
import sys

from planted_tree import expect_breaks, read, report, source_tree

_FOLDERS = ("runtime", "mesh", "ops", "dtensor", "parallel", "tools", "examples", "benchmarks")

# What a source uses of each header.
_NAMES = {
    "algorithm": r"std::(sort|stable_sort|partial_sort|nth_element|is_sorted|find|find_if|find_if_not|count|count_if|any_of|all_of"
                 r"|none_of|min|max|minmax|clamp|min_element|max_element|copy|copy_n|fill|fill_n|generate|transform|lower_bound"
                 r"|upper_bound|equal_range|equal|mismatch|reverse|rotate|remove_if|unique|swap_ranges|push_heap|pop_heap"
                 r"|for_each|includes|set_difference|next_permutation)\b",
    "array": r"std::array\b",
    "atomic": r"std::(atomic|atomic_flag|memory_order_\w+)\b",
    "chrono": r"std::chrono\b",
    "cmath": r"std::(sqrt|pow|exp|log|log2|floor|ceil|round|lround|fabs|fma|hypot|ldexp|nextafter|tanh|sin|cos|isnan|isinf"
             r"|isfinite)\b",
    "condition_variable": r"std::condition_variable\b",
    "cstdint": r"\bu?int(8|16|32|64)_t\b|\buintptr_t\b",
    "cstring": r"std::(memcpy|memmove|memset|memcmp|strlen|strcmp|strerror)\b",
    "deque": r"std::deque\b",
    "functional": r"std::(function|greater|less|plus|hash|bind|invoke|ref|cref)\b",
    "map": r"std::(multi)?map\b",
    "memory": r"std::(unique_ptr|shared_ptr|weak_ptr|make_unique|make_shared|enable_shared_from_this|addressof)\b",
    "mutex": r"std::(mutex|recursive_mutex|lock_guard|unique_lock|scoped_lock|call_once|once_flag)\b",
    "numeric": r"std::(accumulate|iota|gcd|lcm|inner_product|partial_sum|exclusive_scan)\b",
    "optional": r"std::(optional|nullopt)\b",
    "set": r"std::(multi)?set\b",
    "string": r"std::(string|to_string|stoi|getline)\b",
    "thread": r"std::(thread|this_thread)\b",
    "tuple": r"std::(tuple|tie|make_tuple|apply)\b",
    "utility": r"std::(move|forward|exchange|swap|pair|make_pair|as_const|declval|in_place|index_sequence)\b",
    "variant": r"std::(variant|visit|monostate|holds_alternative|get_if)\b",
    "vector": r"std::vector\b",
    "absl/container/flat_hash_map.h": r"absl::flat_hash_map\b",
    "absl/container/flat_hash_set.h": r"absl::flat_hash_set\b",
    "absl/container/inlined_vector.h": r"absl::InlinedVector\b",
    "absl/container/node_hash_map.h": r"absl::node_hash_map\b",
    "absl/functional/any_invocable.h": r"absl::AnyInvocable\b",
    "absl/functional/function_ref.h": r"absl::FunctionRef\b",
    "absl/status/status.h": r"absl::StatusCode\b",
    "absl/strings/str_cat.h": r"absl::(StrCat|StrAppend|Hex|AlphaNum)\b",
    "absl/strings/str_join.h": r"absl::StrJoin\b",
    "absl/strings/string_view.h": r"absl::string_view\b",
    "absl/types/span.h": r"absl::(Span|MakeSpan|MakeConstSpan)\b",
}
_INCLUDE = re.compile(r"^#include [\"<]([^\">]+)[\">]", re.M)


def breaks(root):
    """(sources that were looked at, the lines that tell of breaks)."""
    paths = glob.glob(f"{root}/weft.h")
    for folder in _FOLDERS:
        for suffix in ("h", "cc"):
            paths += glob.glob(f"{root}/{folder}/**/*.{suffix}", recursive=True)
    texts = {os.path.relpath(path, root): read(path) for path in paths}
    includes = {path: set(_INCLUDE.findall(text)) for path, text in texts.items()}
    patterns = {header: re.compile(names) for header, names in _NAMES.items()}
    lines = []
    for path in sorted(texts):
        reached, todo = set(), [path]
        while todo:
            new = includes.get(todo.pop(), set()) - reached
            reached |= new
            todo += new
        code = re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', re.sub(r"//.*", "", texts[path]))
        lines += [f"{path}: {header}" for header, names in patterns.items() if header not in reached and names.search(code)]
    return len(texts), lines


_PLANTED = {
    "mesh/axis.h": "#include <vector>\n#include \"absl/types/span.h\"\nstd::vector<int> Sizes();\n",
    "mesh/axis.cc": "#include \"mesh/axis.h\"\nabsl::Span<int> s; std::vector<int> v; auto w = std::move(v);\n",
    "runtime/text.cc": "#include <memory>\n// std::vector\nconst char* kText = \"std::string\"; std::map<int, int> m;\n",
}


def main():
    expect_breaks(breaks, _PLANTED, (3, ["mesh/axis.cc: utility", "runtime/text.cc: map"]))
    precompiled = set(_INCLUDE.findall(read(f"{source_tree()}/third_party/precompiled/library.h")))
    if precompiled != set(_NAMES):
        return f"FAILED: this test and third_party/precompiled/library.h differ in {sorted(precompiled ^ set(_NAMES))}"
    return report(breaks, failed="these use what neither they nor a header that they include reads",
                  passed="sources and headers read what they use")


if __name__ == "__main__":
    sys.exit(main())

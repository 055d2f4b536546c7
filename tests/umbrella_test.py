"""What the blocks of C++ in docs/*.md and README.md name can be used by whoever includes what the page says.

Of each type and function that a header of a layer declares in namespace weft, at the beginning of a line, one of its headers is
reached from weft.h or from a header that the page names (`parallel/pipeline/checker.h`). What a page declares itself is its own.
Prints page: name (its headers) of each break. First it shows on a planted tree that it can.
"""

import glob
import os
import re
import sys

from planted_tree import expect_breaks, read, report

_LAYERS = ("runtime", "mesh", "ops", "dtensor", "parallel")
_INCLUDE = re.compile(r"^#include \"([^\"]+)\"", re.M)
_DECLARATION = re.compile(
    r"^(?:class|struct|enum(?: class)?|using)\s+(\w+)(?!.*\w;$)|^[A-Za-z][\w:<>,*& ]*[ *&]([A-Z]\w+)\(", re.M)
_BLOCK = re.compile(r"```cpp\n(.*?)```", re.S)
_HEADER = re.compile(r"[\"`]((?:%s)/[\w/]+\.h)[\"`]" % "|".join(_LAYERS))
_OWN = re.compile(r"(?:class|struct|using)\s+(\w+)|^\w[\w:<>*& ]*[ *&]([A-Z]\w+)\([^;]*\{", re.M)


def without_comments(text):
    return re.sub(r"\"(?:[^\"\\\n]|\\.)*\"", '""', re.sub(r"//.*", "", text))


def reached(root, headers):
    found, todo = set(), list(headers)
    while todo:
        header = todo.pop()
        if header in found or not os.path.isfile(f"{root}/{header}"):
            continue
        found.add(header)
        todo += _INCLUDE.findall(read(f"{root}/{header}"))
    return found


def breaks(root):
    """(names that were looked up, the lines that tell of breaks)."""
    declared = {}
    for layer in _LAYERS:
        for path in glob.glob(f"{root}/{layer}/**/*.h", recursive=True):
            for match in _DECLARATION.finditer(re.sub(r"//.*", "", read(path))):
                declared.setdefault(match[1] or match[2], []).append(os.path.relpath(path, root))
    umbrella = reached(root, ["weft.h"])
    num_names, lines = 0, []
    for page in sorted(glob.glob(f"{root}/docs/**/*.md", recursive=True)) + [f"{root}/README.md"]:
        text = read(page)
        code = "\n".join(_BLOCK.findall(text))
        own = {name for match in _OWN.finditer(without_comments(code)) for name in match.groups()}
        here = umbrella | reached(root, _HEADER.findall(text))
        for name in sorted(set(re.findall(r"\b[A-Z]\w+\b", without_comments(code))) - own):
            num_names += name in declared
            if name in declared and not here & set(declared[name]):
                lines.append(f"{os.path.relpath(page, root)}: {name} ({', '.join(sorted(declared[name]))})")
    return num_names, lines


_PLANTED = {
    "weft.h": '#include "mesh/layout.h"\n',
    "mesh/layout.h": '#include "mesh/axis.h"\nclass Layout {\n  int Size();\n};\n',
    "mesh/axis.h": "Axis MakeAxis(int size);\nstruct Axis {};\n",
    "runtime/loader.h": "class Loader {};\nclass Forward;\n",
    "runtime/other.h": "std::vector<int> Others(\n    int count);\n",
    "README.md": "`runtime/other.h`\n```cpp\nLayout a; MakeAxis(3); Others(1); Size(); Own b;  // Loader\n"
                 "class Own {};\n```\n",
    "docs/data.md": '```cpp\nLoader loader("Others");\nOthers(2);\n```\nLoader\n',
}


def main():
    expect_breaks(breaks, _PLANTED,
                  (5, ["docs/data.md: Loader (runtime/loader.h)", "docs/data.md: Others (runtime/other.h)"]))
    return report(breaks, failed="these pages use what neither weft.h nor a header that they name declares",
                  passed="names of the pages' code are declared where the pages say")


if __name__ == "__main__":
    sys.exit(main())

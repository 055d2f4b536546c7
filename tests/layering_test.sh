#!/usr/bin/env bash
# A folder includes itself and folders to its left, nothing else:
#
#   runtime -> mesh -> ops -> dtensor -> parallel -> examples, tools, benchmarks      (tests see all)
#   within runtime: base -> device, store -> tensor -> comm -> trace, data -> launch
#
# Bazel's visibility says the same of targets. This reads the #include lines of every source in the tree, listed in
# a BUILD file or not, and names file:line where one breaks the order. First it shows on planted trees that it can.
set -euo pipefail

# Prints the violations in the source tree $1, one a line: nothing if there is none.
violations() {
  (
    cd "$1"
    find . \( -path './.*' -o -path './bazel-*' -o -path ./third_party \) -prune -o -type f \
      \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc' \) -print0 |
      xargs -0 --no-run-if-empty awk '
        BEGIN {
          split("runtime mesh ops dtensor parallel examples tools benchmarks tests", name)
          split("1       2    3   4       5        6        6     6          7", order)
          for (i in name) rank[name[i]] = order[i]
          split("base device store tensor comm trace data launch", name)
          split("1    2      2     3      4    5     5    6", order)
          for (i in name) part_rank["runtime/" name[i]] = order[i]
        }
        # The first `depth` folders of a path, or "" if it has fewer. A header in the root is the umbrella of all.
        function folder(path, depth,    i, count, pieces, result) {
          count = split(path, pieces, "/")
          if (count <= depth) return ""
          result = pieces[1]
          for (i = 2; i <= depth; i++) result = result "/" pieces[i]
          return result
        }
        function report(problem) { print substr(FILENAME, 3) ":" FNR ": " problem }
        FNR == 1 {
          own = folder(substr(FILENAME, 3), 1)
          own_part = folder(substr(FILENAME, 3), 2)
          if (own != "" && !(own in rank)) report(own " has no place in the order of layers")
          if (own == "runtime" && !(own_part in part_rank)) report("has no place in the order within runtime")
        }
        /^[ \t]*#[ \t]*include[ \t]*["<]/ {
          path = $0
          sub(/^[^"<]*["<]/, "", path)
          sub(/[">].*$/, "", path)
          if (path ~ /(^|\/)\.\.?\//) { report("include from the root, not by " path); next }
          other = folder(path, 1)
          if (path == "weft.h") {
            if (rank[own] < rank["examples"]) report(own " may not include the umbrella " path)
          } else if (other in rank && own != "" && other != own && rank[other] >= rank[own]) {
            report(own " may not include " path)
          } else if (own == "runtime" && other == "runtime") {
            part = folder(path, 2)
            if (part != own_part && part_rank[part] >= part_rank[own_part]) report(own_part " may not include " path)
          }
        }'
  ) | sort
}

# Plants file $2 with the text of stdin in tree $1.
plant() {
  mkdir -p "$(dirname "$1/$2")"
  cat >"$1/$2"
}

expect() {
  local what=$1 expected=$2 actual=$3
  if [[ $actual != "$expected" ]]; then
    printf 'FAILED: %s\nexpected:\n%s\nactual:\n%s\n' "$what" "$expected" "$actual" >&2
    exit 1
  fi
}

self_test() {
  local tree
  tree=$(mktemp -d "${TEST_TMPDIR:-/tmp}/layering.XXXXXX")
  plant "$tree" mesh/layout.h <<<$'#include <vector>\n#include "mesh/placement.h"\n#include "runtime/base/error.h"'
  plant "$tree" runtime/launch/world.h <<<$'#include "runtime/trace/span.h"\n#include "runtime/comm/work.h"'
  plant "$tree" runtime/comm/local/group.cc <<<$'#include "runtime/comm/work.h"\n#include "absl/strings/str_cat.h"'
  plant "$tree" tests/mesh/layout_test.cc <<<$'#include "parallel/plan.h"\n#include "weft.h"'
  plant "$tree" examples/train.cc <<<$'#include "weft.h"\n// #include "tools/x.h"'
  plant "$tree" weft.h <<<'#include "parallel/plan.h"'
  plant "$tree" third_party/x/y.h <<<'#include "dtensor/dtensor.h"'
  expect "a tree in order" "" "$(violations "$tree")"

  plant "$tree" mesh/up.cc <<<$'#include "mesh/layout.h"\n\n  #  include "dtensor/dtensor.h"  // far up'
  plant "$tree" mesh/angle.h <<<'#include <ops/op.h>'
  plant "$tree" ops/cuda/matmul.cu <<<'#include "parallel/plan.h"'
  plant "$tree" ops/relative.h <<<'#include "../dtensor/dtensor.h"'
  plant "$tree" parallel/plan.cc <<<$'#include "tests/mesh/matchers.h"\n#include "weft.h"'
  plant "$tree" tools/sibling.cc <<<'#include "examples/gpt.h"'
  plant "$tree" runtime/tensor/tensor.h <<<'#include "runtime/comm/work.h"'
  plant "$tree" runtime/data/siblings.h <<<'#include "runtime/trace/span.h"'
  plant "$tree" runtime/other/x.h <<<''
  plant "$tree" utils/x.h <<<''
  expect "violations" "$(
    cat <<'LINES'
mesh/angle.h:1: mesh may not include ops/op.h
mesh/up.cc:3: mesh may not include dtensor/dtensor.h
ops/cuda/matmul.cu:1: ops may not include parallel/plan.h
ops/relative.h:1: include from the root, not by ../dtensor/dtensor.h
parallel/plan.cc:1: parallel may not include tests/mesh/matchers.h
parallel/plan.cc:2: parallel may not include the umbrella weft.h
runtime/data/siblings.h:1: runtime/data may not include runtime/trace/span.h
runtime/other/x.h:1: has no place in the order within runtime
runtime/tensor/tensor.h:1: runtime/tensor may not include runtime/comm/work.h
tools/sibling.cc:1: tools may not include examples/gpt.h
utils/x.h:1: utils has no place in the order of layers
LINES
  )" "$(violations "$tree")"
  rm -rf "$tree"
}

export LC_ALL=C
self_test
# Through Bazel's links: the test is `local` and `external`, it reads the real tree at every run.
root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
if [[ ! -f $root/WORKSPACE || ! -f $root/runtime/base/error.h ]]; then
  echo "FAILED: $root is not the source tree" >&2
  exit 1
fi
found=$(violations "$root")
if [[ -n $found ]]; then
  printf '%s\n' "$found" "FAILED: the order of layers is broken (see the head of tests/layering_test.sh)" >&2
  exit 1
fi

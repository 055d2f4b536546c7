#!/usr/bin/env bash
# A folder includes itself and folders to its left, nothing else; what one pair of braces holds does not know each other:
#
#   runtime -> mesh -> ops -> dtensor -> parallel -> examples, tools, benchmarks      (tests see all)
#
#   runtime:  base -> {device, store} -> tensor -> comm -> {trace, data} -> launch
#   mesh:     its own files -> redistribution
#   ops:      op -> sharding -> declare -> elementwise -> {creation, reduce} ->
#             {attention, convolution, indexing, normalization, optimizer, product, shape} -> cpu, cuda
#   ops/cpu:  spans -> {creation, elementwise, indexing, normalization, optimizer, product, reduce, shape} ->
#             {attention, convolution}
#   ops/cuda: blocks -> {creation, elementwise, indexing, optimizer, product, reduce, shape} ->
#             {attention, convolution, cublaslt, normalization}
#   dtensor:  context -> redistribution -> dtensor.h -> {host_memory.h, redistribute_each.h} -> call -> tape -> dispatch.h ->
#             {autograd, inspect, mesh_transfer.h} -> functions -> functions.h -> nn -> optim -> checkpoint
#
# And no circle: if a header and its source count as one, no file reaches itself by its includes.
#
# Bazel's visibility says the same of targets. This reads the #include lines of every source in the tree, listed in
# a BUILD file or not, and names file:line where one breaks the order. First it shows on planted trees that it can.
set -euo pipefail

# Prints the violations in the source tree $1, one per line: nothing if there is none.
violations() {
  (
    cd "$1"
    find . \( -path './.*' -o -path './bazel-*' -o -path ./third_party \) -prune -o -type f \
      \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc' \) -print0 |
      xargs -0 --no-run-if-empty awk '
        # Gives each place of a chain its rank: "base/ device/,store/ tensor/" are three steps in `where`.
        function chain(where, text,    steps, count, names, i, j) {
          count = split(text, steps, " ")
          for (i = 1; i <= count; i++) {
            split(steps[i], names, ",")
            for (j in names) part_rank[where "/" names[j]] = i
          }
          ordered[where] = 1
        }
        BEGIN {
          split("runtime mesh ops dtensor parallel examples tools benchmarks tests", name)
          split("1       2    3   4       5        6        6     6          7", order)
          for (i in name) rank[name[i]] = order[i]
          chain("runtime", "base/ device/,store/ tensor/ comm/ trace/,data/ launch/")
          chain("mesh", "device_mesh,machine,placement layout,mesh_choice layout_words,shard_math view_algebra redistribution/")
          chain("ops", "op/ sharding/ declare/ elementwise/ creation/,reduce/ " \
                       "attention/,convolution/,indexing/,normalization/,optimizer/,product/,shape/ cpu/,cuda/")
          chain("ops/cpu", "tsan_suppressions,spans/ " \
                           "creation/,elementwise/,indexing/,normalization/,optimizer/,product/,reduce/,shape/ " \
                           "attention/,convolution/")
          chain("ops/cuda", "blocks/ creation/,elementwise/,indexing/,optimizer/,product/,reduce/,shape/ " \
                            "attention/,convolution/,cublaslt/,normalization/")
          chain("dtensor", "context/ redistribution/ dtensor host_memory,redistribute_each call/ tape/ dispatch " \
                           "autograd/,inspect/,mesh_transfer functions/ functions nn/ optim/ checkpoint/")
          chain("tools/launcher", "processes/,stream_choice launch_options,rendezvous/ workers/ agent_store,outbox,store_command agent launch")
        }
        # The place of a path within the folder `where`, as chain names them: "ops/cpu/", "dtensor/dispatch".
        function place(path, where,    rest) {
          rest = substr(path, length(where) + 2)
          if (index(rest, "/") > 0) return where "/" substr(rest, 1, index(rest, "/"))
          sub(/\.[a-z]*$/, "", rest)
          return where "/" rest
        }
        function within(path, where) { return index(path, where "/") == 1 }
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
          own_path = substr(FILENAME, 3)
          own = folder(own_path, 1)
          if (own != "" && !(own in rank)) report(own " has no place in the order of layers")
          for (where in ordered) {
            if (within(own_path, where) && !(place(own_path, where) in part_rank)) {
              report("has no place in the order within " where)
            }
          }
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
          } else {
            for (where in ordered) {
              if (!within(own_path, where) || !within(path, where)) continue
              from = place(own_path, where)
              to = place(path, where)
              if (to != from && part_rank[to] >= part_rank[from]) {
                sub(/\/$/, "", from)
                report(from " may not include " path)
              }
            }
          }
        }'
  ) | sort
}

# Prints each circle among the files of tree $1, a header and its source as one: a line that ends where it began.
circles() {
  (
    cd "$1"
    find runtime mesh ops dtensor parallel examples tools benchmarks -type f \
      \( -name '*.h' -o -name '*.cc' -o -name '*.cu' \) -print0 2>/dev/null |
      xargs -0 --no-run-if-empty awk '
        function stem(path) { sub(/\.[a-z]*$/, "", path); return path }
        /^[ \t]*#[ \t]*include[ \t]*"/ {
          path = $0
          sub(/^[^"]*"/, "", path)
          sub(/".*$/, "", path)
          if (stem(path) != stem(FILENAME)) print stem(FILENAME), stem(path)
        }'
  ) | sort -u | { tsort 2>&1 >/dev/null || true; } | awk '/contains a loop/ { next } { sub(/^tsort: /, ""); print }'
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
  plant "$tree" mesh/layout.cc <<<'#include "mesh/layout.h"'
  plant "$tree" mesh/redistribution/search/nodes.h <<<'#include "mesh/redistribution/move.h"'
  plant "$tree" mesh/redistribution/planner.h <<<'#include "mesh/redistribution/search/nodes.h"'
  plant "$tree" ops/reduce/reduce.h <<<$'#include "ops/elementwise/broadcast.h"\n#include "mesh/layout.h"'
  plant "$tree" ops/cpu/reduce/reduce.cc <<<$'#include "ops/cpu/spans/rows.h"\n#include "ops/reduce/reduce.h"'
  plant "$tree" dtensor/dispatch.cc <<<$'#include "dtensor/dispatch.h"\n#include "dtensor/tape/op_node.h"'
  plant "$tree" dtensor/functions.h <<<'#include "dtensor/functions/shape.h"'
  plant "$tree" runtime/launch/world.h <<<$'#include "runtime/trace/span.h"\n#include "runtime/comm/work.h"'
  plant "$tree" runtime/comm/local/group.cc <<<$'#include "runtime/comm/work.h"\n#include "absl/strings/str_cat.h"'
  plant "$tree" tests/mesh/layout_test.cc <<<$'#include "parallel/plan.h"\n#include "weft.h"'
  plant "$tree" examples/train.cc <<<$'#include "weft.h"\n// #include "tools/x.h"'
  plant "$tree" weft.h <<<'#include "parallel/plan.h"'
  plant "$tree" third_party/x/y.h <<<'#include "dtensor/dtensor.h"'
  expect "a tree in order" "" "$(violations "$tree")"
  expect "a tree without circles" "" "$(circles "$tree")"

  plant "$tree" mesh/layout.cc <<<$'#include "mesh/layout.h"\n\n  #  include "dtensor/dtensor.h"  // far up'
  plant "$tree" mesh/angle.h <<<'#include <ops/op/op.h>'
  plant "$tree" mesh/shard_math.h <<<'#include "mesh/redistribution/region.h"'
  plant "$tree" ops/cuda/product/matmul.cu <<<'#include "parallel/plan.h"'
  plant "$tree" ops/cpu/product/gemm.cc <<<'#include "ops/cpu/convolution/conv.h"'
  plant "$tree" ops/shape/relative.h <<<'#include "../dtensor/dtensor.h"'
  plant "$tree" ops/elementwise/elementwise_op.h <<<'#include "ops/reduce/reduce.h"'
  plant "$tree" ops/shape/pad.h <<<'#include "ops/indexing/sort.h"'
  plant "$tree" dtensor/dtensor.cc <<<'#include "dtensor/tape/tape_node.h"'
  plant "$tree" dtensor/tape/op_node.cc <<<'#include "dtensor/dispatch.h"'
  plant "$tree" parallel/plan.cc <<<$'#include "tests/mesh/matchers.h"\n#include "weft.h"'
  plant "$tree" tools/sibling.cc <<<'#include "examples/gpt.h"'
  plant "$tree" runtime/tensor/tensor.h <<<'#include "runtime/comm/work.h"'
  plant "$tree" runtime/data/siblings.h <<<'#include "runtime/trace/span.h"'
  plant "$tree" runtime/other/x.h <<<''
  plant "$tree" utils/x.h <<<''
  expect "violations" "$(
    cat <<'LINES'
dtensor/dtensor.cc:1: dtensor/dtensor may not include dtensor/tape/tape_node.h
dtensor/tape/op_node.cc:1: dtensor/tape may not include dtensor/dispatch.h
mesh/angle.h:1: has no place in the order within mesh
mesh/angle.h:1: mesh may not include ops/op/op.h
mesh/layout.cc:3: mesh may not include dtensor/dtensor.h
mesh/shard_math.h:1: mesh/shard_math may not include mesh/redistribution/region.h
ops/cpu/product/gemm.cc:1: ops/cpu/product may not include ops/cpu/convolution/conv.h
ops/cuda/product/matmul.cu:1: ops may not include parallel/plan.h
ops/elementwise/elementwise_op.h:1: ops/elementwise may not include ops/reduce/reduce.h
ops/shape/pad.h:1: ops/shape may not include ops/indexing/sort.h
ops/shape/relative.h:1: include from the root, not by ../dtensor/dtensor.h
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

  tree=$(mktemp -d "${TEST_TMPDIR:-/tmp}/layering.XXXXXX")
  plant "$tree" dtensor/a.h <<<'#include "dtensor/b.h"'
  plant "$tree" dtensor/b.cc <<<'#include "dtensor/c.h"'
  plant "$tree" dtensor/c.h <<<'#include "dtensor/a.h"'
  expect "a circle" "$(printf 'dtensor/a\ndtensor/b\ndtensor/c')" "$(circles "$tree" | sort)"
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
found=$(circles "$root")
if [[ -n $found ]]; then
  printf '%s\n' "$found" "FAILED: these files include each other in a circle, a header and its source taken as one" >&2
  exit 1
fi

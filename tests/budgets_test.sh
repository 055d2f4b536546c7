#!/usr/bin/env bash
# The tree stays readable: files of at most 400 lines, functions of at most 60 (tests may hold longer ones: tables), each
# clause of a contract at the start of its line ("Cost:", "Errors:", ...), a line of purpose in each header before what it
# declares first, a README.md in each folder of sources. Names file:line where one is broken. First it shows on a planted
# tree that it can.
set -euo pipefail
export LC_ALL=C

max_file_lines=400
max_function_lines=60

# The sources of tree $1, ending in \0.
sources() {
  find "$1" \( -path "$1/.*" -o -path "$1/bazel-*" -o -path "$1/third_party" \) -prune -o -type f \
    \( -name '*.h' -o -name '*.cc' -o -name '*.cu' \) -print0
}

# Prints what breaks a budget in tree $1, one per line; nothing if all is well.
violations() {
  local root=$1 folder
  {
    sources "$root" | xargs -0 --no-run-if-empty awk -v root="$root" -v max_file="$max_file_lines" \
      -v max_function="$max_function_lines" '
      function report(line, problem) { print substr(FILENAME, length(root) + 2) ":" line ": " problem }
      function end_of_file() { if (last > max_file) print name ": " last " lines, at most " max_file " may be" }
      FNR == 1 { if (name != "") end_of_file(); begin = 0; inside = 0; says = 0; name = substr(FILENAME, length(root) + 2) }
      { last = FNR }
      # A header, up to its first declaration.
      /^\/\// { says = 1 }
      inside && !says && name ~ /\.h$/ && !/^$/ && !/^namespace / && !/^(class|struct|enum class) [A-Za-z0-9_]+;/ {
        report(FNR, "the header has no line of purpose before this")
        says = 1
      }
      /^namespace weft/ { inside = 1 }
      # A function, as clang-format lays it: from a line that is indented by 0 or 2 and is no declaration of a type or
      # namespace to the brace that closes it.
      begin == 0 && /^( |  )?[A-Za-z~:].*[^;]$/ && !/^ *(namespace|class|struct|enum|union|extern "C"|public|private|protected)/ {
        if ($0 ~ /^  /) { indent = "  " } else { indent = "" }
        start = FNR
      }
      begin == 0 && start > 0 && /\{$/ && !/= *(\{+|\[.*)$/ && !/(namespace|class|struct|enum|union) [^(]*\{$/ { begin = start }
      begin > 0 && $0 == indent "}" {
        if (FNR - begin + 1 > max_function && name !~ /^tests\//) {
          report(begin, "a function of " FNR - begin + 1 " lines, at most " max_function " may be")
        }
        begin = 0
        start = 0
      }
      /;$/ && begin == 0 { start = 0 }
      /^$/ && begin == 0 { start = 0 }
      /^ *\/\/ .*[.;:)] +(Shape|Layout|Units|Cost|Threads|Lifetime|Errors|Source): / && !/^ *\/\/ .*\|/ {
        report(FNR, "a clause in mid-line")
      }
      END { end_of_file() }'
    for folder in runtime mesh ops dtensor parallel examples tools benchmarks; do
      [[ -d $root/$folder ]] || continue
      find "$root/$folder" -type d | while read -r folder; do
        [[ -n $(find "$folder" -maxdepth 1 -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cu' \) -print -quit) ]] || continue
        [[ -f $folder/README.md ]] || echo "${folder#"$root"/}: has no README.md"
      done
    done
  } | sort
}

# Plants file $2 with the text of stdin in tree $1.
plant() {
  mkdir -p "$(dirname "$1/$2")"
  cat >"$1/$2"
}

# lines COUNT TEXT: the text so many times.
lines() {
  local i
  for ((i = 0; i < $1; i++)); do printf '%s\n' "$2"; done
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
  tree=$(mktemp -d "${TEST_TMPDIR:-/tmp}/budgets.XXXXXX")
  plant "$tree" mesh/README.md <<<'# mesh'
  {
    printf '// Adds.\n//\n// Cost:   none; see the table.\n// Errors: InvalidArgument.\n'
    printf 'class Long {\n public:\n  int Half() {\n'
    lines 30 '    x++;'
    printf '  }\n  int Rest() {\n'
    lines 58 '    x++;'
    printf '  }\n  std::vector<int> all_ = [this] {\n'
    lines 70 '    x++;'
    printf '  }();\n};\n'
  } | plant "$tree" mesh/in_order.h
  lines 400 '// x' | plant "$tree" mesh/full.cc
  plant "$tree" mesh/above.h <<<$'// Pairs.\n\n#include <utility>\n\nnamespace weft {\n\nstruct Pair {};\n\n}  // namespace weft'
  plant "$tree" mesh/beside.h <<<$'#include <utility>\n\nnamespace weft {\n\nclass Mesh;\n\n// A pair.\nstruct Pair {};\n\n}  // namespace weft'
  {
    printf 'void LongTable() {\n'
    lines 90 '  x++;'
    printf '}\n'
  } | plant "$tree" tests/mesh/layout_test.cc
  expect "a tree in order" "" "$(violations "$tree")"

  {
    printf '// Adds.   Cost: none.\n// Multiplies. Errors: InvalidArgument.\nnamespace weft {\n\nint Sum(int a,\n        int b) {\n'
    lines 59 '  a++;'
    printf '}\n\n}  // namespace weft\n'
  } | plant "$tree" mesh/over.cc
  lines 401 '// x' | plant "$tree" ops/too_long.cu
  plant "$tree" mesh/silent.h <<<$'#include <utility>\n\nnamespace weft {\n\nclass Mesh;\n\nstruct Pair {};\n// Of it.\n\n}  // namespace weft'
  expect "violations" "$(
    cat <<'LINES'
mesh/over.cc:1: a clause in mid-line
mesh/over.cc:2: a clause in mid-line
mesh/over.cc:5: a function of 62 lines, at most 60 may be
mesh/silent.h:7: the header has no line of purpose before this
ops/too_long.cu: 401 lines, at most 400 may be
ops: has no README.md
LINES
  )" "$(violations "$tree")"
  rm -rf "$tree"
}

self_test
# Through Bazel's links: the test is `local` and `external`, it reads the real tree at every run.
root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
if [[ ! -f $root/WORKSPACE || ! -f $root/runtime/base/error.h ]]; then
  echo "FAILED: $root is not the source tree" >&2
  exit 1
fi
found=$(violations "$root")
if [[ -n $found ]]; then
  printf '%s\n' "$found" "FAILED: a budget is broken (see the head of tests/budgets_test.sh)" >&2
  exit 1
fi

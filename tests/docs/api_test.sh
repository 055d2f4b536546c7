#!/usr/bin/env bash
# What Doxygen gets to read, whole; and what docs/api/make.sh says and passes on, with a doxygen that only shows what it was given.
# Arguments: docs/api/filter.py, docs/api/make.sh and docs/api/Doxyfile.
set -euo pipefail
filter=$PWD/$1
script=$PWD/$2
doxyfile=$PWD/$3
tree=$(mktemp -d "${TEST_TMPDIR:-/tmp}/api.XXXXXX")
trap 'rm -rf "$tree"' EXIT
cd "$tree"

expect() {
  local what=$1
  diff "$tree/expected" "$tree/said" >&2 || {
    echo "FAILED: $what: expected above as <, said as >" >&2
    exit 1
  }
}

cat >header.h <<'TEXT'
#ifndef WEFT_HEADER_H_
#define WEFT_HEADER_H_

// Adds: one header for all.

#include <vector>

namespace weft {

// The sum of `a<b>` and @b, #1.
//
//   one   "a" -> b
//   two
//
// Shape:  [n], where n ::= 100%;
//         at least 1.
// Errors: InvalidArgument.
// - first,
//   and so on
int Add(int a,  // no member
        int b) {
  // Not for readers.
  return a + b;
}

struct Pair {  // this stays
  int a = 0;   // of `both`
  int b = 0;   // the other,
               // in two lines

  // How many?
  int Count() const { return 2; }  // neither

 private:
  // A section.

  // Counts.
  std::vector<int> all_ = {
      // none
  };
};

enum class Kind { kOne, kTwo };

// Nothing follows.
}  // namespace weft

#endif  // WEFT_HEADER_H_
TEXT
cat >expected <<'TEXT'
#ifndef WEFT_HEADER_H_
#define WEFT_HEADER_H_

/// @file header.h Adds: one header for all.

#include <vector>

namespace weft {

/// The sum of <code>a&lt;b&gt;</code> and \@b, \#1.
///
/// <pre>  one   &quot;a&quot; -&gt; b
///   two
/// </pre>
/// <dl class="section"><dt>Shape</dt><dd>[n], where n \::= 100\%;
/// at least 1.</dd></dl>
/// <dl class="section"><dt>Errors</dt><dd>InvalidArgument.</dd></dl>
/// <ul><li>first,
/// and so on</li></ul>
int Add(int a,  // no member
        int b) {
  // Not for readers.
  return a + b;
}

struct Pair {  // this stays
  int a = 0;  ///< of <code>both</code>
  int b = 0;  ///< the other,
               ///< in two lines

  /// How many?
  int Count() const { return 2; }  // neither

 private:
  /// A section.

  /// Counts.
  std::vector<int> all_ = {
      // none
  };
};

enum class Kind { kOne, kTwo };

// Nothing follows.
}  // namespace weft

#endif  // WEFT_HEADER_H_
TEXT
python3 "$filter" header.h >said
expect "the filter"

mkdir -p docs/api runtime/base bin here
cp "$doxyfile" docs/api/Doxyfile
echo 'inline constexpr char kVersion[] = "1.2.3";' >runtime/base/version.h
for program in bash cat dirname mkdir readlink realpath sed; do ln -s "$(command -v "$program")" "bin/$program"; done
# run ARGUMENTS...: the script as Bazel starts it, with the programs of bin/ alone; its words and exit status go to `said`.
run() {
  (
    cd "$tree/here"
    env -i PATH="$tree/bin" BUILD_WORKSPACE_DIRECTORY="$tree" BUILD_WORKING_DIRECTORY="$tree/here" bash "$script" "$@" >"$tree/said" 2>&1
    echo "exit $?" >>"$tree/said"
  ) || true
}

run
printf '%s\n' "error: there is no doxygen; apt-get install doxygen" "exit 1" >expected
expect "without doxygen"

cat >bin/doxygen <<'TEXT'
#!/bin/bash
while read -r line; do [[ $line != PROJECT_NUMBER* && $line != OUTPUT* ]] || echo "$line"; done
exit 0
TEXT
chmod +x bin/doxygen
run out
printf '%s\n' 'PROJECT_NUMBER = "1.2.3"' "OUTPUT_DIRECTORY = \"$tree/here/out\"" "$tree/here/out/index.html" "exit 0" >expected
expect "a folder from where the user stands"
run
printf '%s\n' 'PROJECT_NUMBER = "1.2.3"' "OUTPUT_DIRECTORY = \"$tree/api\"" "$tree/api/index.html" "exit 0" >expected
expect "the folder of the tree"

sed -i 's/exit 0/exit 1/' bin/doxygen
run
printf '%s\n' 'PROJECT_NUMBER = "1.2.3"' "OUTPUT_DIRECTORY = \"$tree/api\"" "error: Doxygen has warnings, or failed; they stand above" "exit 1" >expected
expect "warnings"
run a b
printf '%s\n' "error: expected one folder, got 'a' and 'b'" "exit 1" >expected
expect "two folders"
run --form=html
printf '%s\n' "error: unknown flag --form=html; see --help" "exit 1" >expected
expect "an unknown flag"

#!/usr/bin/env bash
# Measures which lines the tests run, by layer: see usage.
set -euo pipefail

usage() {
  cat <<'TEXT'
Measures which lines of the layers the tests run, and holds each layer to its floor in tools/coverage_floors.txt.

usage: tools/coverage.sh [--write] [--files=LAYER] [TARGET...]

  TARGET         tests to run, by default //tests/... With targets, only the layers are held to their floors of which
                 they name all tests: //tests/mesh/... judges mesh.
  --write        writes the floors anew: what was measured minus two points, of the layers that would be judged
  --files=LAYER  also prints each file of that layer, the least covered first
  --help         this text

Builds in a tree of its own in Bazel's output folder, without a cache: the first run over everything compiles everything.
JOBS=N runs N compilations or tests at once, by default as many as there are cores. gcov comes with g++. Exits 1 if a layer is
below its floor or a test fails.

Example: JOBS=1 nice tools/coverage.sh --files=mesh //tests/mesh/...
TEXT
}

fail() {
  echo "error: $*" >&2
  exit 1
}

targets=()
report=()
for word in "$@"; do
  case $word in
    --help | -h)
      usage
      exit 0
      ;;
    --write | --files=*) report+=("$word") ;;
    -*) fail "unknown flag $word; see --help" ;;
    //*) targets+=("$word") ;;
    *) fail "'$word' is no target; expected one as //tests/mesh/..." ;;
  esac
done
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
command -v gcov >/dev/null || fail "there is no gcov; apt-get install g++"
if ((${#targets[@]} > 0)); then report+=("--targets=${targets[*]}"); else targets=(//tests/...); fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
objects=$(bazel info --noshow_progress --config=coverage bazel-bin 2>"$work/log") || { cat "$work/log" >&2; exit 1; }

# Objects name their counters' files /proc/self/cwd/bazel-out/<configuration>/bin/...: put under a folder of this run, where
# programs that run at the same time join their counts.
status=0
bazel test --config=coverage --keep_going --noshow_progress --show_result=0 --test_output=errors --jobs="${JOBS:-auto}" \
  --test_env=GCOV_PREFIX="$work/counts" --test_env=GCOV_PREFIX_STRIP=3 "${targets[@]}" || status=$?
# Bazel's 3: a test failed. What ran is counted all the same.
((status == 0 || status == 3)) || fail "the tests cannot be built or found"

# gcov wants an object's graph (.gcno) and its counts (.gcda) in one folder. What no program ran has no counts: 0.
counts=$work/counts/${objects#*/execroot/*/}
mkdir -p "$counts"
(cd "$objects" && find . -name '*.gcno' -exec cp --parents -t "$counts" {} +)
(cd "$counts" && find . -name '*.gcno' -print0 | xargs -0 --no-run-if-empty gcov --json-format --stdout) \
  >"$work/lines.json" 2>"$work/log" || { tail -5 "$work/log" >&2; fail "gcov failed"; }
python3 tools/coverage_report.py "${report[@]}" "$work/lines.json" || status=1
((status == 0)) || fail "a test has failed, or a layer is below its floor"

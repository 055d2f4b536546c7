#!/usr/bin/env bash
# Runs clang-tidy, with the checks of .clang-tidy, over the tree's sources: see usage.
set -euo pipefail

usage() {
  cat <<'TEXT'
Runs clang-tidy with the checks of .clang-tidy, and ends with the number of findings of each check.

usage: tools/clang_tidy.sh [PATH...]

  PATH        a source (.cc) of the build, or a folder: all in it; by default the whole tree. CUDA sources are left out.
  --help      this text

Needs the package clang-tidy, which the build does not: apt-get install clang-tidy. A source takes about 5 s of a core;
JOBS=N runs N at once, by default one per core. Exits 1 if there is any finding, if clang-tidy is killed or fails, or for a
source that clang cannot read: what clang 14 does not know of C++20 is in
ops/cpu/product/packed_gemm.cc, ops/normalization/{cross_entropy,layer_norm_grad,rms_norm_grad}.cc.

Example: JOBS=1 nice tools/clang_tidy.sh runtime/comm mesh/layout.cc
TEXT
}

paths=()
for word in "$@"; do
  case $word in
    --help | -h)
      usage
      exit 0
      ;;
    -*)
      echo "error: unknown flag $word; see --help" >&2
      exit 1
      ;;
    *) paths+=("$(realpath -m "$word")") ;;
  esac
done
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
command -v clang-tidy > /dev/null || {
  echo "error: there is no clang-tidy; apt-get install clang-tidy" >&2
  exit 1
}
((${#paths[@]} > 0)) || paths=("$PWD")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What the sources include that is made by the build, and the flags with which Bazel compiles each source.
bazel build --noshow_progress --show_result=0 //runtime/store:tcp_store_proto 2> "$work/log" ||
  { cat "$work/log" >&2; exit 1; }
bazel aquery --noshow_progress 'mnemonic("CppCompile", //...)' --output=jsonproto > "$work/actions.json" 2> "$work/log" ||
  { cat "$work/log" >&2; exit 1; }
base=$(bazel info --noshow_progress output_base 2> /dev/null)
output=$(bazel info --noshow_progress output_path 2> /dev/null)

# Writes compile_commands.json, and prints the sources to check, in the order of the layers.
python3 - "$work" "$base" "$output" "${paths[@]}" > "$work/sources" <<'PYTHON'
import json, os, sys

work, base, output, *paths = sys.argv[1:]
LAYERS = ["runtime", "mesh", "ops", "dtensor", "parallel", "tools", "examples", "benchmarks", "tests"]


def here(path):
    """An include folder of Bazel's sandbox, outside it."""
    if path.startswith("external/"):
        return os.path.join(base, path)
    if path.startswith("bazel-out/"):
        return output + path[len("bazel-out"):]
    return path


commands = {}
for action in json.load(open(work + "/actions.json"))["actions"]:
    words = action["arguments"]
    source = words[words.index("-c") + 1]
    if source.split("/")[0] not in LAYERS:
        continue
    kept = ["clang++"]
    for i, word in enumerate(words):
        if word in ("-iquote", "-isystem", "-I"):
            generated = words[i + 1].startswith("bazel-out/")  # nobody mends what a program has written
            kept += ["-isystem" if generated else word, here(words[i + 1])]
        # GCC's other flags are unknown to clang, or say nothing about the source.
        elif word.startswith(("-D", "-m", "-std=")) and not word.startswith("-D_FORTIFY_SOURCE"):
            kept.append(word)
    commands[source] = {"directory": os.getcwd(), "file": source, "arguments": kept + ["-c", source]}
json.dump(list(commands.values()), open(work + "/compile_commands.json", "w"))


def wanted(source):
    full = os.path.realpath(source)
    return any(full == path or full.startswith(path.rstrip("/") + "/") for path in paths)


for source in sorted(commands, key=lambda source: (LAYERS.index(source.split("/")[0]), source)):
    if wanted(source):
        print(source)
PYTHON
num_sources=$(wc -l < "$work/sources")
((num_sources > 0)) || { echo "error: no source of the build is in ${paths[*]}" >&2; exit 1; }
echo "clang-tidy: $num_sources sources"

# For errors in a source clang-tidy ends with 1: xargs goes on, and ends with 123. Where clang-tidy is killed, xargs stops.
status=0
# A finding in a header comes once for each source that includes it: shown once.
xargs -a "$work/sources" -d '\n' -n 1 -P "${JOBS:-$(nproc)}" clang-tidy --quiet -p "$work" \
  > "$work/findings" 2> "$work/errors" || status=$?
awk '/^[^ ].*: (warning|error): / { shown = !seen[$0]++ } shown' "$work/findings"
echo "clang-tidy: findings of each check"
grep -aE ': (warning|error): ' "$work/findings" | sort -u | grep -oE '\[[a-z0-9.,-]+\]$' | sort | uniq -c | sort -rn > "$work/counts" || true
cat "$work/counts"
if grep -aq ': error: ' "$work/findings" "$work/errors"; then
  grep -a ': error: ' "$work/errors" >&2 || true
  echo "error: clang could not read every source" >&2
  exit 1
fi
if ((status > 123)) || { ((status != 0)) && [[ ! -s $work/counts ]]; }; then
  tail -n 5 "$work/errors" >&2
  echo "error: clang-tidy did not look at every source: it was killed, or failed" >&2
  exit 1
fi
[[ ! -s $work/counts ]]

#!/usr/bin/env bash
# Builds here what needs a GPU, and packs it into one folder whose `run` checks a machine that has one:
#
#   tools/gpu_check.sh gpu_check.bundle
#   scp -r gpu_check.bundle node1: && ssh node1 gpu_check.bundle/run
#
# What `run` checks and prints: tools/gpu_check_run.sh. Options beyond the folder go to `bazel build`, such as
# --repo_env=WEFT_CUDA_ARCHS=90 for one architecture, which is smaller.
set -euo pipefail

usage() {
  cat <<'TEXT'
Builds what needs a GPU and packs it into a folder, whose `run` checks a machine that has one.

usage: tools/gpu_check.sh FOLDER [BAZEL_OPTION...]

  FOLDER          where to put it; may not exist yet
  BAZEL_OPTION    for bazel build: --repo_env=WEFT_CUDA_ARCHS=90 builds for one architecture
  --help          this text
TEXT
}

case ${1:-} in
  --help | -h)
    usage
    exit 0
    ;;
  "" | -*)
    echo "error: expected the folder to make, got '${1:-}'; see --help" >&2
    exit 1
    ;;
esac
out=$(realpath -m "$1")
shift
[[ ! -e $out ]] || { echo "error: $out exists already" >&2; exit 1; }
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."

mapfile -t tests < <(bazel query 'attr(tags, "\bgpu\b", //tests/...)' 2>/dev/null)
((${#tests[@]} > 0)) || { echo "error: bazel query finds no test with the tag gpu" >&2; exit 1; }
targets=("${tests[@]}" //tools:check_rules //examples:train_gpt //benchmarks:gpt2_gpu //benchmarks/kernels)
bazel build --config=cuda "$@" "${targets[@]}"
programs=()
for target in "${targets[@]}"; do
  [[ $target == *:* ]] || target+=":$(basename "$target")"
  path=${target#//}
  programs+=("bazel-bin/${path/://}")
done
tools/bundle.sh "${programs[@]}" -o "$out"
# Symbols are of no use there.
for program in "${programs[@]}"; do strip "$out/lib/$(basename "$program")"; done
cp tools/gpu_check_run.sh "$out/run"
cp benchmarks/peers/pytorch_gpt2_gpu.py "$out/"
chmod +x "$out/run" "$out/pytorch_gpt2_gpu.py"
echo "$out: $(du -sh "$out" | cut -f1); on a machine with a GPU: $out/run"

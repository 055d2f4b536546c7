#!/usr/bin/env bash
# Packs programs with the libraries they need into one folder that runs on another machine:
#
#   bazel build --config=cuda //examples:train_gpt
#   bazel run //tools:bundle -- bazel-bin/examples/train_gpt -o train_gpt.bundle
#   scp -r train_gpt.bundle node1: && ssh node1 train_gpt.bundle/train_gpt --help
#
# The folder holds a starter per program, and in lib/ the programs themselves and every shared library they need but those that
# belong to the machine: the C library, which must be as new there as here, and CUDA's (driver, runtime, cuBLAS, cuDNN, NCCL),
# which are looked for in the loader's paths, in $CUDA_HOME and in /usr/local/cuda.
set -euo pipefail

usage() {
  cat <<'TEXT'
Packs programs with the libraries they need into a folder that runs on another machine.

usage: bundle PROGRAM... -o FOLDER

  PROGRAM      a program that Bazel has built: bazel-bin/examples/train_gpt; several have different names
  -o FOLDER    where to put it; may not exist yet
  --help       this text

example:
  bazel build --config=cuda //examples:train_gpt
  bazel run //tools:bundle -- bazel-bin/examples/train_gpt -o train_gpt.bundle
TEXT
}

fail() {
  echo "error: $*" >&2
  exit 1
}

# The user's path: `bazel run` starts this elsewhere.
user_path() {
  case $1 in
    /*) echo "$1" ;;
    *) echo "${BUILD_WORKING_DIRECTORY:-$PWD}/$1" ;;
  esac
}

# True for libraries that every machine has its own of.
is_the_machines() {
  case $1 in
    linux-vdso.so.* | ld-linux*) return 0 ;;
    libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.* | libutil.so.* | libnsl.so.*) return 0 ;;
    libcuda.so.* | libcudart.so.* | libcublas.so.* | libcublasLt.so.* | libcudnn*.so.* | libnccl.so.* | libnvrtc*.so.*) return 0 ;;
  esac
  return 1
}

programs=()
out=
while (($#)); do
  case $1 in
    --help | -h)
      usage
      exit 0
      ;;
    -o)
      (($# > 1)) || fail "-o: expected a folder"
      out=$(user_path "$2")
      shift
      ;;
    -*) fail "unknown option $1; see --help" ;;
    *) programs+=("$(user_path "$1")") ;;
  esac
  shift
done
((${#programs[@]})) || fail "no program given; see --help"
[[ -n $out ]] || fail "no folder given: -o FOLDER"
[[ ! -e $out ]] || fail "$out exists already"

declare -A program_of=()  # by name, which its starter in the folder has
for program in "${programs[@]}"; do
  [[ -f $program && -x $program ]] || fail "$program is not a program; build it first"
  needed=$(ldd "$program" 2>&1) || fail "$program: $needed"
  name=$(basename "$program")
  [[ -z ${program_of[$name]:-} ]] || fail "expected programs of different names, got ${program_of[$name]} and $program"
  program_of[$name]=$program
done
mkdir -p "$out/lib"
for program in "${programs[@]}"; do
  name=$(basename "$program")
  cp -L "$program" "$out/lib/$name"
  chmod u+w "$out/lib/$name"
  # "libfoo.so.1 => /usr/lib/libfoo.so.1 (0x...)", or "libfoo.so.1 => not found"
  while read -r library arrow path _; do
    [[ ${arrow:-} == '=>' ]] || continue
    is_the_machines "$library" && continue
    [[ $path != not ]] || fail "$name needs $library, which is not on this machine"
    [[ -e $out/lib/$library ]] || cp -L "$path" "$out/lib/$library"
  done < <(ldd "$program")
  cat >"$out/$name" <<'STARTER'
#!/bin/sh
# Starts the program of this name with the libraries beside it.
self=$(readlink -f "$0")
here=$(dirname "$self")
LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
for cuda in "${CUDA_HOME:-}" /usr/local/cuda; do
  if [ -n "$cuda" ] && [ -d "$cuda/lib64" ]; then LD_LIBRARY_PATH="$LD_LIBRARY_PATH:$cuda/lib64"; fi
done
export LD_LIBRARY_PATH
exec "$here/lib/$(basename "$self")" "$@"
STARTER
  chmod +x "$out/$name"
done
echo "$out: $(ls "$out/lib" | wc -l) files, $(du -sh "$out" | cut -f1)"

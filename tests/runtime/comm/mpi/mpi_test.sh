#!/bin/bash
# The tests of the `mpi` backend: 8 processes, one without a launcher, and a job that a deserted rank ends.
# Argument: the program.
set -u
program=$PWD/$1
tmp=$(mktemp -d /tmp/weft_mpi.XXXXXX)  # a short path: OpenMPI makes sockets in it
trap 'rm -rf "$tmp"' EXIT
export TMPDIR=$tmp HOME=$tmp
# Jobs that sandboxes start at once take each other's names in /dev/shm: their process numbers are the same.
export OMPI_MCA_btl_vader_backing_directory=$tmp
# The tests end with groups that were left to fail; leaks of MPI's own are none of their business.
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0"

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

launch() {
  timeout --kill-after=5 "$1" mpirun -n "$2" --oversubscribe --allow-run-as-root --bind-to none \
    --mca btl self,vader --mca mpi_yield_when_idle 1 "$program" "${@:3}"
}

launch 240 8 --gtest_filter=-MpiAlone.* || fail "8 processes"

timeout --kill-after=5 30 "$program" --gtest_filter=MpiAlone.* || fail "a process without a launcher"

begin=$SECONDS
launch 40 2 desert >"$tmp/log" 2>&1 && fail "a job whose rank has failed ended well"
[[ $((SECONDS - begin)) -lt 30 ]] || { cat "$tmp/log" >&2; fail "a deserted rank did not end the job"; }
grep -q "world rank 1 ends the MPI job: the disk is full (other processes have not ended)" "$tmp/log" ||
  { cat "$tmp/log" >&2; fail "the job's end does not say why"; }
echo PASSED

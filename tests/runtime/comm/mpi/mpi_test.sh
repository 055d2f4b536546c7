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

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

launch() {
  timeout --kill-after=5 "$1" mpirun -n "$2" --oversubscribe --allow-run-as-root --bind-to none \
    --mca btl self,vader --mca mpi_yield_when_idle 1 "$program" "${@:3}"
}

# A minute less than Bazel gives the test, for the rest.
launch $((${TEST_TIMEOUT:-300} - 60)) 8 --gtest_filter=-MpiAlone.* || fail "8 processes"

timeout --kill-after=5 30 "$program" --gtest_filter=MpiAlone.* || fail "a process without a launcher"

begin=$SECONDS
launch 40 2 desert >"$tmp/log" 2>&1 && fail "a job whose rank has failed ended well"
[[ $((SECONDS - begin)) -lt 30 ]] || { cat "$tmp/log" >&2; fail "a deserted rank did not end the job"; }
grep -q "world rank 1 ends the MPI job: the disk is full (other processes have not ended)" "$tmp/log" ||
  { cat "$tmp/log" >&2; fail "the job's end does not say why"; }

# OpenMPI's leaks are not reported under LeakSanitizer, and ours are.
launch 40 2 leak >"$tmp/log" 2>&1
status=$?
if grep -q "leaks are looked for" "$tmp/log"; then
  [[ $status != 0 ]] || fail "a leak is no failure"
  [[ $(grep "leak of" "$tmp/log") == "Direct leak of 4321 byte(s) in 1 object(s) allocated from:" ]] ||
    { cat "$tmp/log" >&2; fail "expected one leak, of 4321 bytes"; }
else
  [[ $status == 0 ]] || { cat "$tmp/log" >&2; fail "the job for leaks"; }
fi
echo PASSED

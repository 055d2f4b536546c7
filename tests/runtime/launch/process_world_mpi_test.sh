#!/bin/bash
# Worlds of processes that mpirun has started: no other configuration, and the same words when something goes wrong.
# Argument: process_program.
set -u
program=$PWD/$1
TMPDIR=$(mktemp -d /tmp/weft_mpi.XXXXXX) # OpenMPI's sockets need a short path
export TMPDIR
# Jobs that sandboxes start at once take each other's names in /dev/shm: their process numbers are the same.
export OMPI_MCA_btl_vader_backing_directory=$TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
cd "$TMPDIR" || exit 1
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

# run HOW RANK [TIMEOUT_MS]: leaves out, err and the exit code in `status`.
run() {
  TEST_RANKS=3 TEST_TIMEOUT_MS=${3:-60000} timeout 50 mpirun --allow-run-as-root --oversubscribe \
    --mca mpi_yield_when_idle 1 -n 3 "$program" "$1" "$2" > out 2> err
  status=$?
  return $status
}

expect() {
  grep -qF -- "$1" err || fail "expected '$1', got: $(cat err)"
}

run nothing 0
[[ $status == 0 ]] || fail "exit code $status: $(cat err)"
[[ $(grep -c '^done$' out) == 3 ]] || fail "expected three ranks to be done: $(cat out)"

# MPI begins once, and serves the next worlds of the process, too.
run again 0
[[ $status == 0 ]] || fail "again: exit code $status: $(cat err)"
[[ $(grep -c '^done$' out) == 15 ]] || fail "expected three ranks to be done five times: $(cat out)"

# How long the ranks of a world wait for each other is not how long a collective does.
run late 1 1
[[ $status == 0 ]] || fail "late: exit code $status: $(cat err)"
[[ $(grep -c '^done$' out) == 3 ]] || fail "late: expected three ranks to be done: $(cat out)"

# A batch script may tell a host without a port: that is no address. A token may have blanks.
export MASTER_ADDR=node0 WEFT_STORE_TOKEN="two words"
run nothing 0
unset MASTER_ADDR WEFT_STORE_TOKEN
[[ $status == 0 ]] || fail "a host without a port: exit code $status: $(cat err)"
[[ $(grep -c '^done$' out) == 3 ]] || fail "expected three ranks to be done: $(cat out)"

# Beside MPI's groups there are gloo's.
run groups 0
[[ $status == 0 ]] || fail "groups: exit code $status: $(cat err)"
[[ $(grep -c '^done$' out) == 3 ]] || fail "expected three ranks to be done: $(cat out)"

# A group may be let go of when its world has ended.
run keep 0
[[ $status == 0 ]] || fail "keep: exit code $status: $(cat err)"
[[ $(grep -c '^let go$' out) == 3 ]] || fail "expected three ranks to let go of their groups: $(cat out)"

# A deadlock across groups, under a timeout of a minute: one verdict, everywhere.
begin=$SECONDS
run circle 0
[[ $status != 0 ]] || fail "a deadlock ended well"
[[ $(grep -c '^weft: deadlock: ' err) == 1 ]] || fail "expected one verdict: $(cat err)"
((SECONDS - begin < 40)) || fail "it took $((SECONDS - begin)) s"

run size 2
[[ $status != 0 ]] || fail "a mismatch ended well"
expect "count 300000"
expect "rank 2 called all_reduce(f32, sum, count 77)"

run throw 1
[[ $status != 0 ]] || fail "an exception ended well"
# mpirun ends the rest when the first has ended, which need not be the rank that threw.
expect "the disk is full"

# Rank 1 comes when it has been told of.
export TEST_GO=$TMPDIR/go
run slow 1 &
waiting="weft: waiting: rank 1 has not entered (last seen: data loader, "
for ((i = 0; i < 800; ++i)); do grep -qsF -- "$waiting" err && break; sleep 0.05; done
touch "$TEST_GO"
wait $!
status=$?
[[ $status == 0 ]] || fail "a slow rank: exit code $status: $(cat err)"
expect "$waiting"

exit $((failures > 0))

#!/bin/bash
# A job whose rank 1 is killed goes on in a new generation from the state that it has saved, to the same end.
# Arguments: weft_run, process_program.
set -eu
weft_run=$1
program=$2
state=$(mktemp -d "${TEST_TMPDIR:-/tmp}/restart.XXXXXX")/state
fail() {
  echo "FAILED: $*" >&2
  exit 1
}

export TEST_RANKS=3
straight=$(TEST_STATE=$state.straight timeout 60 "$weft_run" --nproc-per-node=3 "$program" train -1) || fail "straight"
[[ $straight == "generation 0: 0."* ]] || fail "an uninterrupted run printed '$straight'"

restarted=$(TEST_STATE=$state timeout 60 "$weft_run" --nproc-per-node=3 --max-restarts=1 "$program" train 1 2> "$state.err") ||
  fail "restarted: $(cat "$state.err")"
[[ $restarted == "${straight/generation 0/generation 1}" ]] || fail "'$restarted' after a restart, '$straight' without"
grep -q "rank 1" "$state.err" || fail "the death is not told: $(cat "$state.err")"

# Without a restart to spend, the same is the end.
status=0
TEST_STATE=$state.end timeout 60 "$weft_run" --nproc-per-node=3 "$program" train 1 > "$state.out" 2> "$state.err" || status=$?
[[ $status == 137 ]] || fail "expected exit code 137, got $status"
# Rank 0 may be stopped before it has written its last step down.
[[ $(cut -d' ' -f1 "$state.end") == 1[01] ]] || fail "expected 10 or 11 steps in the state, found $(cat "$state.end")"

# Failures count since the last save: one restart is enough for any number of them with saves between, and not without.
kills=4,9,14
saved=$(TEST_KILLS=$kills TEST_NOTE_SAVE=1 TEST_STATE=$state.saved timeout 60 "$weft_run" --nproc-per-node=3 --max-restarts=1 \
  "$program" train 1 2> "$state.err") || fail "with saves: $(cat "$state.err")"
[[ $saved == "${straight/generation 0/generation 3}" ]] || fail "'$saved' after three restarts, '$straight' without"
[[ $(grep -c "restart 1 of 1 since the last save" "$state.err") == 3 ]] || fail "restarts are not told: $(cat "$state.err")"
if TEST_KILLS=$kills TEST_STATE=$state.unsaved timeout 60 "$weft_run" --nproc-per-node=3 --max-restarts=1 "$program" train 1 \
  > "$state.out" 2> "$state.err"; then
  fail "a second failure without a save was restarted"
fi
grep -q "after 1 of 1 restarts" "$state.err" || fail "the end is not told: $(cat "$state.err")"

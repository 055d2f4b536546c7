#!/bin/bash
# train_vit tells weft_run of its saves: failures count since the last one, so that a rank that is killed twice, with saves
# between, takes one restart of --max-restarts=1 each time. Arguments: train_vit, weft_run.
set -u
program=$PWD/$1
weft_run=$PWD/$2
. "$(dirname "${BASH_SOURCE[0]}")/small_images.sh"
dir=$(mktemp -d "${TEST_TMPDIR:-/tmp}/train_images.XXXXXX")
cd "$dir" || exit 1

fail() {
  echo "FAILED: $*" >&2
  [[ -z ${job:-} ]] || kill -TERM "$job" 2> /dev/null
  exit 1
}

# await CONDITION...: until it holds; a minute, and no longer than the job lives.
await() {
  local i
  for ((i = 0; i < 1200; i++)); do
    "$@" && return
    kill -0 "$job" 2> /dev/null || break
    sleep 0.05
  done
  fail "$*: $(tail -5 err)"
}
is_started() { rank1=$(cat rank.1 2> /dev/null) && [[ -n $rank1 && $rank1 != "$killed" ]]; }
saved() { cat runs/latest 2> /dev/null || echo step-000000000; }
has_saved_after() { [[ $(saved) > $1 ]]; }

images train 90
images t10k 42
# Each rank leaves its process id in rank.RANK.
# shellcheck disable=SC2016  # for the inner shell
"$weft_run" --nproc-per-node=2 --max-restarts=1 bash -c 'echo $$ > "rank.$RANK"; exec "$@"' rank \
  "$program" --data=. --batch=7 --eval_every=0 --mesh=dp=2 --steps=1000000 --checkpoint_dir=runs --save_every=1 > out 2> err &
job=$!
killed=
for life in 1 2 3; do
  await is_started
  # A step has its name before the launcher hears of it: two more, of which the first is told.
  for _ in 1 2; do await has_saved_after "$(saved)"; done
  [[ $life == 3 ]] && break
  killed=$rank1
  kill -KILL "$killed"
done
[[ $(grep -c 'restart 1 of 1 since the last save' err) == 2 ]] || fail "expected two restarts since a save: $(cat err)"
kill -TERM "$job"
wait "$job"
status=$?
[[ $status == 143 ]] || fail "expected exit code 143 after SIGTERM, got $status: $(tail -5 err)"

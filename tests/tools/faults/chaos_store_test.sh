#!/bin/bash
# chaos: a job whose store is killed and begun again, in steps, in saves and while ranks start, goes on without a restart of its
# ranks; killed together with ranks and launchers it ends with the bits of a job in peace; nothing is left of the store.
# Arguments: chaos, weft_run, forgetful_trainer.
. tests/tools/faults/chaos.sh "$@" || exit 1
job+=(--suspicion_time=1s)

# --- The store alone: no rank dies, none starts again. Every restart is a failure here.
# On one node, and on two; there for longer than the time after which a node counts as lost, too. That time is long enough for a busy
# machine, on which a rank that is held up would be lost.
alone() {
  local name=$1
  shift
  hurt "$name" --kinds=store --max_restarts=0 "$@"
  expect "$name" '"equal":true' '"left_behind":0' '"in_save":3'
  [[ $(grep -c "weft_run: store: listens at" "$name/hurt.log") -ge 9 ]] || fail "$name: it has not begun again 8 times: $(cat "$name/hurt.log")"
  [[ $(grep -c "error\|failed\|start again" "$name/hurt.log") == 0 ]] || fail "$name: ranks have ended: $(cat "$name/hurt.log")"
  [[ -s $name/store/journal ]] || fail "$name: there is no journal"
}
alone one --kills=8 --suspicion_time=5s
alone two --kills=8 --nodes=2 --seed=2 --suspicion_time=5s --store_away=10s

# --- With deaths before, after and meanwhile.
hurt mixed --kinds=store,rank,agent,both --kills=9 --seed=7
expect mixed '"kills":9' '"recovered":9' '"equal":true' '"left_behind":0'
for kind in store rank agent both; do grep -q "of 9: $kind" mixed.err || fail "no fault of kind $kind: $(cat mixed.err)"; done

# --- A store that forgets, and one that leaves a file, are found out.
cat > forgets << END
#!/bin/bash
# weft_run, with a store that begins empty each time.
if [[ \$1 == store ]]; then rm -f "\${2#--dir=}/journal"; fi
exec '$weft_run' "\$@"
END
cat > litters << END
#!/bin/bash
if [[ \$1 == store ]]; then mkdir -p "\${2#--dir=}" && touch "\${2#--dir=}/draft.new"; fi
exec '$weft_run' "\$@"
END
chmod +x forgets litters
try forgot --kinds=store --kills=2 --max_restarts=0 --weft_run="$dir/forgets" --patience=20
grep -q "failed" forgot/hurt.log || fail "a store that forgot all was no loss: $(cat forgot.json forgot.err forgot/hurt.log)"
try littered --kinds=store --kills=1 --weft_run="$dir/litters" && fail "a file that stays was not found"
expect littered '"left_behind":1' '"equal":true'
grep -q "left behind: .*/store/draft.new" littered.err || fail "the file is not named: $(cat littered.err)"

left=$(pgrep -f -- "--dir=$dir")
[[ -z $left ]] || fail "stores run on: $(pgrep -af -- "--dir=$dir")"
exit $((failures > 0))

#!/bin/bash
# chaos: a job of three nodes that are killed, one or all, frozen for a while, and whose store and ranks are killed, ends with the bits of
# one that nobody hurt; restarted by its agents, and from outside alone.
# Arguments: chaos, weft_run, forgetful_trainer.
. tests/tools/faults/chaos.sh "$@" || exit 1
job+=(--suspicion_time=1s)

for restarts in 3 0; do
  hurt "mixed$restarts" --nodes=3 --ranks=3 --kinds=host,hosts,store,rank,agent,freeze --kills=9 --seed=8 \
    --max_restarts=$restarts
  expect "mixed$restarts" '"kills":9' '"recovered":9' '"equal":true' '"left_behind":0'
done
for kind in host freeze; do grep -q "$kind of node [0-2] at step" mixed3.err || fail "no $kind of a node: $(cat mixed3.err)"; done
exit $((failures > 0))

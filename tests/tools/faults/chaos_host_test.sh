#!/bin/bash
# chaos: a job of several nodes that loses one with all its processes and snapshots goes on with the node that takes its place, from
# the copies of the snapshots on the others; one that loses all nodes goes on from its folder, under the store that stayed.
# Arguments: chaos, weft_run, train_gpt.
. tests/tools/faults/chaos.sh "$@" || exit 1
job+=(--suspicion_time=1s)

for i in $(seq 1 400); do echo "line $i of the tale, $((i * i % 97)) and so on"; done > text.txt
gpt=(--nodes=2 --ranks=4 --save_every=16
  --train_flags="--mesh=dp=auto --plan=fsdp --layers=2 --heads=4 --dim=64 --context=32 --batch=8 --dropout=0.1 --shuffle=epoch \
    --eval_every=0 --sample=0 --threads=1 --snapshot_every=2 --data=$dir/text.txt")

# --- One of two nodes, with snapshots: what it had is on the other. Whether a snapshot or the folder is newer is up to the moment.
for seed in 5 6 7; do
  hurt "host$seed" "${gpt[@]}" --kinds=host --kills=8 --seed=$seed
  expect "host$seed" '"kills":8' '"recovered":8' '"equal":true' '"left_behind":0'
  grep -q "going on from the snapshot of step" "host$seed/hurt.log" && break
done
grep -q "going on from the snapshot of step" host?/hurt.log || fail "host: it has never gone on from a snapshot: $(cat host?.err)"

# --- All nodes: no snapshot is left, the folder is. Under a suspicion time that a busy machine keeps: nodes that were lost for being
# slow would go on from their snapshots.
hurt hosts "${gpt[@]}" --kinds=hosts --kills=3 --seed=6 --suspicion_time=5s
expect hosts '"kills":3' '"recovered":3' '"equal":true' '"left_behind":0'
grep "going on from the snapshot of step" hosts/hurt.log && fail "hosts: snapshots have outlived their nodes"
# A fault after the first save costs the steps since the last one, and never all.
sed -n 's/^fault .* at step \([0-9]*\).*/\1/p; s/^  step \([0-9]*\), .*/next \1/p' hosts.err > steps
awk '$1 == "next" { if (at > 32 && $2 < at - 32) bad = 1; next } { at = $1 } END { exit bad }' steps || fail "hosts: more was lost: $(cat hosts.err)"

# --- Bad input: one line.
try bad --nodes=2 --ranks=3 && fail "3 ranks on 2 nodes: no error"
grep -q "3 ranks on 2 nodes: expected as many on each node" bad.err || fail "3 ranks on 2 nodes: $(cat bad.err)"
exit $((failures > 0))

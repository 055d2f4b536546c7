#!/bin/bash
# chaos: nodes that are away for longer than the suspicion time, their agent stopped or their cable pulled, cost steps and no bit.
# What a node leaves in its own /dev/shm is found. Ended by a signal, chaos leaves nobody away.
# Where the kernel refuses networks, the other faults are done.
# Arguments: chaos, weft_run, forgetful_trainer.
. tests/tools/faults/chaos.sh "$@" || exit 1

# Ranks go on until somebody misses their agent, so there are steps enough for that.
job+=(--suspicion_time=1s --save_every=20)

# --- An agent that is stopped: others miss its node; of a single one the ranks miss the store, which the agent keeps.
hurt pause --kinds=pause --kills=1 --nodes=2
expect pause '"kills":1' '"recovered":1' '"equal":true' '"left_behind":0' '"skipped":0'
grep -q "was lost: no sign of life for 1 s: all workers start again" pause/hurt.log || fail "pause: nobody has missed it: $(cat pause/hurt.log)"
hurt alone --kinds=pause --kills=2
expect alone '"kills":2' '"recovered":2' '"equal":true' '"left_behind":0'

# --- The suspicion time is that of the job that is hurt: in the one in peace a rank that is held up for longer, as by a busy machine,
# is not taken for lost.
cat > dozes << END
#!/bin/bash
# Rank 1 of the job in peace is stopped for two seconds.
if [[ \$TORCHELASTIC_RUN_ID == *-calm && \$RANK == 1 ]]; then
  (kill -STOP \$\$; sleep 2; kill -CONT \$\$) &
fi
exec '$trainer' "\$@"
END
chmod +x dozes
hurt held_up --train_gpt="$dir/dozes" --kinds=rank --kills=1 --save_every=3 --max_restarts=0
expect held_up '"kills":1' '"recovered":1' '"equal":true' '"left_behind":0'

# --- A signal while an agent is stopped ends the whole job.
"$chaos" "${job[@]}" --folder=told --kinds=pause --kills=1 --nodes=2 --suspicion_time=20s > told.json 2> told.err &
pid=$!
until grep -qs "pause of node" told.err; do
  kill -0 $pid 2> /dev/null || { fail "told: it has ended: $(cat told.err)"; break; }
  sleep 0.05
done
sleep 0.5
kill -TERM $pid
wait $pid && fail "told: exit code 0"
grep -q "told to stop by signal 15" told.err || fail "told: $(cat told.err)"
for ((i = 0; i < 300; i++)); do
  pgrep -f -- "${dir##*/}/told" > /dev/null || break
  sleep 0.1
done
((i < 300)) || fail "told: left running: $(pgrep -af -- "${dir##*/}/told")"

# --- A kernel that makes no networks.
if unshare --user --map-root-user true; then
  unshare --user --map-root-user bash -c 'echo 0 > /proc/sys/user/max_net_namespaces; exec "$@"' refused "$chaos" "${job[@]}" \
    --folder=refused --kills=2 --kinds=unplug,rank --nodes=2 > refused.json 2> refused.err || fail "no network: $(tail -3 refused.err)"
  expect refused '"kills":1' '"recovered":1' '"equal":true' '"left_behind":0' '"skipped":1'
  grep -q "skipped: unplug, 1 times: a node is unplugged in a network of its own, and the kernel refuses namespaces: " refused.err ||
    fail "no network: not said: $(cat refused.err)"
fi

# --- Two nodes with a cable each.
PATH=$dir "$chaos" "${job[@]}" --folder=without --kinds=unplug --nodes=2 > without.json 2> without.err && fail "without iproute2: no error"
grep -q "there is no program 'ip': install the package iproute2\|the kernel refuses" without.err || fail "without iproute2: $(cat without.err)"
unplugged=("unplug --kinds=unplug --kills=1" "mixed --kinds=unplug,pause,rank --kills=6 --seed=2")
for run in "${unplugged[@]}"; do
  read -ra words <<< "$run"
  name=${words[0]}
  try "$name" --nodes=2 "${words[@]:1}" || {
    grep "the kernel refuses" "$name.err" && echo "skipped: no networks" && break
    fail "$name: $(tail -3 "$name.err")"
  }
  grep "skipped: unplug" "$name.err" && break
  kills=${run#*--kills=}
  expect "$name" "\"kills\":${kills%% *}" "\"recovered\":${kills%% *}" '"equal":true' '"left_behind":0' '"skipped":0'
  grep -q "store: listens at 10.78.0.1:" "$name/hurt.log" || fail "$name: the job has no network of its own: $(cat "$name/hurt.log")"
  grep -q "was lost: no sign of life for 1 s" "$name/hurt.log" || fail "$name: nobody has missed the node: $(cat "$name/hurt.log")"
done

# --- Each node leaves a file in its own memory, and the job in peace one.
if ! grep -q "the kernel refuses\|skipped: unplug" unplug.err; then
  printf '#!/bin/bash\n: > /dev/shm/weft-left\nexec %q "$@"\n' "$trainer" > litters
  chmod +x litters
  try littered --train_gpt="$dir/litters" --nodes=2 --kinds=unplug --kills=1 && fail "littered: exit code 0"
  expect littered '"left_behind":3' '"equal":true'
  for name in weft-left host0/weft-left host1/weft-left; do
    grep -q "left behind: /dev/shm/$name$" littered.err || fail "littered: no $name: $(cat littered.err)"
  done
fi
exit $((failures > 0))

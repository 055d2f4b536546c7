#!/bin/bash
# Two machines, which are network namespaces with a cable between them, and a job on both whose store is on the first. The cable is
# pulled and put back: for less than the suspicion time, and nothing happens; for longer, and what is left waits or goes on, and the
# machine that was cut off takes part again, or ends with one line. The weights are those of a run in peace. Skipped where the
# kernel refuses namespaces.
# Arguments: train_gpt, weft_run, both|one: how many machines the job needs.
set -u
. tests/in_namespace.sh
. benchmarks/shaped_link.sh
enter_namespaces --net --mount --pid --fork --mount-proc -- "$@"
train=$PWD/$1
weft_run=$PWD/$2
needs=$3
dir=$(mktemp -d "${TEST_TMPDIR:-/tmp}/unplugged.XXXXXX")
cd "$dir" || exit 1
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

make_link

# on_rank_host N COMMAND...: there, with what ranks need to meet.
on_rank_host() {
  local host=$1
  shift
  on_host "$host" env "WEFT_GLOO_HOST=10.77.0.$((host + 1))" WEFT_STORE_TOKEN=secret "$@"
}

for i in $(seq 1 400); do echo "line $i of the tale, $((i * i % 97)) and so on"; done > text.txt
flags=(--data=text.txt --layers=2 --heads=4 --dim=32 --context=16 --batch=8 --dropout=0.1 --log_format=json --sample=0
  --eval_every=0 --plan=fsdp --threads=1)
# Of a file of --save, without its head, which has the flags.
elements() { tail -c "+$((9 + $(od -An -tu8 -N8 "$1")))" "$1"; }
num_steps() { cat "$name".?.json | wc -l; }

# in_peace STEPS
in_peace() {
  "$train" "${flags[@]}" --mesh=dp=2 "--steps=$1" --save="peace.$1" > peace.json 2> peace.err || fail "in peace: $(tail -3 peace.err)"
}

# begin NAME STEPS SUSPICION FIRST NODE_FLAGS... -- TRAIN_FLAGS...: the job and its store; FIRST is the host whose node comes first,
# so that rank 0 is there.
begin() {
  name=$1 steps=$2
  local suspicion=$3 first=$4 host node_flags=()
  shift 4
  while [[ $1 != -- ]]; do
    node_flags+=("$1")
    shift
  done
  shift
  on_rank_host 0 "$weft_run" store "--dir=$dir/$name.store" --port=29500 --host=10.77.0.1 "--suspicion_time=$suspicion" \
    > "$name.store.out" 2> "$name.store.err" &
  store=$!
  until [[ -s $name.store.out ]]; do
    kill -0 $store 2> /dev/null || { fail "$name: no store: $(cat "$name.store.err")"; break; }
    sleep 0.02
  done
  for host in "$first" $((1 - first)); do
    on_rank_host "$host" timeout 60 "$weft_run" --store=10.77.0.1:29500 "${node_flags[@]}" "--suspicion_time=$suspicion" \
      --max-restarts=3 --rdzv-id=unplugged "$train" "${flags[@]}" "$@" "--steps=$steps" "--checkpoint_dir=$name" --save_every=20 \
      --save="$dir/$name.safetensors" > "$name.$host.json" 2> "$name.$host.err" &
    nodes[host]=$!
    # The second comes when the first has a place.
    sleep 0.5
  done
}

await_step() {
  until [[ $(num_steps) -ge $1 ]]; do
    kill -0 "${nodes[0]}" 2> /dev/null || { fail "$name: it ended before step $1: $(tail -5 "$name".?.err)"; return; }
    sleep 0.02
  done
}
unplug() { ip -n host0 link set cable0 down; }
plug() { ip -n host0 link set cable0 up; }

# end CODE0 CODE1: with which the nodes end.
end() {
  local host code expected=("$@")
  for host in 0 1; do
    wait "${nodes[host]}"
    code=$?
    [[ $code == "${expected[host]}" ]] || fail "$name: node $host ended with code $code: $(tail -5 "$name.$host.err")"
  done
  kill "$(pgrep -P $store)"
  wait $store || fail "$name: the store: $(cat "$name.store.err")"
  cmp <(elements "peace.$steps") <(elements "$name.safetensors") || fail "$name: the weights differ from those of the run in peace"
  [[ $(find "$name" "$name.store" -name '*.tmp' -o -name '*.new' | wc -l) == 0 ]] || fail "$name: left behind: $(find "$name" "$name.store")"
  pgrep -x train_gpt > /dev/null && fail "$name: left running: $(pgrep -ax train_gpt)"
}
restarts() { grep -c "all workers start again" "$name.$1.err"; }

nodes=(0 0)
if [[ $needs == both ]]; then
  in_peace 300
  # --- For a second of the five: nobody notices.
  begin shortly 300 5s 0 --nnodes=2 --nproc-per-node=1 -- --mesh=dp=2
  await_step 100
  unplug
  sleep 1
  plug
  end 0 0
  [[ $(restarts 0) == 0 && $(restarts 1) == 0 && $(num_steps) == 300 ]] || fail "shortly: it has started again: $(tail -3 shortly.?.err)"

  # --- For longer than two: the ranks end on both sides, and begin again when both machines are there.
  begin long 300 2s 0 --nnodes=2 --nproc-per-node=1 -- --mesh=dp=2
  await_step 100
  unplug
  sleep 5
  [[ $(num_steps) -lt 150 ]] || fail "long: it went on without the other half of its ranks"
  plug
  end 0 0
  [[ $(restarts 0) == 1 && $(restarts 1) == 1 ]] || fail "long: expected one restart: $(tail -3 long.?.err)"
else
  in_peace 1500
  in_peace 400
  in_peace 600
  spares=(--nnodes=1:2 --nproc-per-node=2 --rdzv-conf=last_call_timeout=3 -- --mesh_choices=dp=2)
  # --- The machine with all ranks that train: the spares of the other take their places; when it is back it is a spare.
  begin back 1500 2s 1 "${spares[@]}"
  await_step 100
  unplug
  unplugged=$SECONDS
  until [[ $(wc -l < back.0.json) -gt 0 ]]; do
    kill -0 "${nodes[0]}" 2> /dev/null || { fail "back: the spares have not taken over: $(tail -3 back.0.err)"; break; }
    sleep 0.02
  done
  # 2 s until the machine is missed, 3 s in which others may still come, 5 s for the start; the rest is for a busy machine.
  ((SECONDS - unplugged < 30)) || fail "back: the spares' first step came $((SECONDS - unplugged)) s after the cable was pulled"
  plug
  end 0 0
  grep -q "a node joins: all workers start again" back.0.err || fail "back: the other one has not joined: $(tail -3 back.0.err)"

  # --- It is back when the job is over.
  begin late 400 2s 1 "${spares[@]}"
  await_step 100
  unplug
  wait "${nodes[0]}"
  plug
  end 0 1
  [[ $(tail -1 late.1.err) == "error: the job is over: it has finished" ]] || fail "late: no such line: $(tail -3 late.1.err)"

  # --- It is not back within the grace: it ends by itself.
  begin gone 600 2s 1 --store_grace=2s "${spares[@]}"
  await_step 100
  unplug
  end 0 1
  plug
  grep -q "lost the job's store: \|the job's store is gone: " gone.1.err || fail "gone: no such line: $(tail -3 gone.1.err)"
fi
exit $((failures > 0))

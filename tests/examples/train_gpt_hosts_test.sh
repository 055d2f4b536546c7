#!/bin/bash
# Two machines: network namespaces with a cable between them and a /dev/shm each. train_gpt trains across them as it does
# on threads, to the bit; when the cable is pulled every rank says so in time, and nothing is left running. Skipped where
# the kernel refuses namespaces.
# Arguments: train_gpt, weft_run.
set -u
. tests/in_namespace.sh
. benchmarks/shaped_link.sh
enter_namespaces --net --mount --pid --fork --mount-proc -- "$@"
train=$PWD/$1
weft_run=$PWD/$2
dir=$(mktemp -d "${TEST_TMPDIR:-/tmp}/hosts.XXXXXX")
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
small=(--data=text.txt --layers=2 --heads=4 --dim=32 --context=16 --batch=4 --log_format=json --sample=0 --eval_every=0
  "--mesh=dp=2,tp=2")
losses() { sed -n 's/^{"step":\([0-9]*\),"loss":\([^,]*\),"grad_norm":\([^,]*\),.*/\1 \2 \3/p' "$1"; }
nodes=(--nnodes=2 --nproc-per-node=2 --master-addr=10.77.0.1 --master-port=29500 --rdzv-id=hosts)

"$train" "${small[@]}" --steps=8 > threads.json 2> threads.err || fail "threads: $(tail -1 threads.err)"
on_rank_host 1 timeout 100 "$weft_run" "${nodes[@]}" --node-rank=1 "$train" "${small[@]}" --steps=8 > node1.json 2> node1.err &
on_rank_host 0 timeout 100 "$weft_run" "${nodes[@]}" --node-rank=0 "$train" "${small[@]}" --steps=8 > node0.json 2> node0.err ||
  fail "node 0: $(tail -5 node0.err)"
wait $! || fail "node 1: $(tail -5 node1.err)"
[[ $(losses node0.json | wc -l) == 8 ]] || fail "expected 8 steps on node 0: $(cat node0.json node0.err)"
diff <(losses threads.json) <(losses node0.json) > /dev/null ||
  fail "two hosts differ from threads: $(diff <(losses threads.json) <(losses node0.json))"
[[ ! -s node1.json ]] || fail "node 1 printed $(head -1 node1.json)"

# --- The cable is pulled.
on_rank_host 1 timeout 100 "$weft_run" "${nodes[@]}" --node-rank=1 "$train" "${small[@]}" --steps=1000000 \
  > node1.json 2> node1.err &
node1=$!
on_rank_host 0 timeout 100 "$weft_run" "${nodes[@]}" --node-rank=0 "$train" "${small[@]}" --steps=1000000 \
  > node0.json 2> node0.err &
node0=$!
until [[ $(wc -l < node0.json) -ge 5 ]]; do sleep 0.05; kill -0 $node0 2> /dev/null || break; done
ip -n host0 link set cable0 down
begin=$SECONDS
wait $node0 && fail "node 0 ended well without its peer"
wait $node1 && fail "node 1 ended well without its peer"
((SECONDS - begin < 60)) || fail "the ends took $((SECONDS - begin)) s"
for node in 0 1; do
  for rank in $((2 * node)) $((2 * node + 1)); do
    grep -q "\[rank $rank\] error: " "node$node.err" || fail "rank $rank said nothing: $(cat "node$node.err")"
  done
done
left=$(pgrep -c -x train_gpt)
[[ $left == 0 ]] || fail "$left processes are left: $(pgrep -a -x train_gpt)"

exit $((failures > 0))

#!/bin/bash
# How much of the communication of gradients and parameters hides behind compute, on a link that is slow enough to see:
#
#   bazel run //benchmarks:overlap -- [--rate=MBIT] [--steps=N] [--pairs=N] [--plans=ddp,zero1,zero2,fsdp] [--scheduler=JSON]
#                                     [--peer=PYTHON] [--traces=FOLDER] [TRAIN_GPT_FLAG...]
#
# Two processes train a small GPT (6 layers, 384 wide, 16 x 256), one thread each, in two network namespaces, each with its
# own /dev/shm. The cable between them is shaped to MBIT (1000) by a token bucket at both ends, or not, in turn, as many
# times as --pairs says (5). Under fsdp each block's attn and mlp is a unit, and the last mlp stays gathered until the update.
# --scheduler='"prefetch": 2' is what plans say to the scheduler. Prints one JSON object per line, as the other benchmarks do
# (`figure.h`):
#
#   overlap/PLAN/exposed      (step shaped - step unshaped) / (bytes that a rank sends / measured rate of the link)
#   overlap/PLAN/own          the same share by the trainer's own account: exposed seconds, less those unshaped, over the same
#   overlap/PLAN/own_apart    how far the two lie apart
#   overlap/PLAN/step         step shaped / step unshaped; medians
#   overlap/PLAN/own_pieces   step shaped / step with collectives that fill their outputs from the rank's own pieces
#   overlap/PLAN/link         exposed, of steps that wait for nobody while two other processes send each other as much: what the
#                             link takes from the ranks' cores when it is shaped, whoever sends
#   overlap/PLAN/inline       step shaped / step unshaped, without overlap: what a wait for every collective costs
#
# --peer is a Python that has PyTorch: a name, or a path from where you stand. Its DDP or FSDP2 then trains the same model on the
# same link in turn, with its default sizes and with ours, and there are besides, of the better of the two:
#
#   overlap/PLAN/peer_exposed, /peer_step    as above; the bytes are those on the cable
#   overlap/PLAN/ahead                       our tokens/s on the shaped link over the peer's; target 1
#   overlap/PLAN/ahead_exposed               the peer's smaller exposed share less ours; target 0
#
# With --traces, an existing folder, one more run of each on the shaped link is traced: FOLDER/PLAN.json and PLAN.inline.json,
# and both with .1 of rank 1, for tools/merge_traces.py and tools/draw_trace.py. Tracing is no part of what is measured.
#
# Losses shaped and unshaped are the same bits, or it exits 1, as it does where the kernel refuses namespaces.
set -u
rate=1000
steps=8
pairs=5
plans=ddp,fsdp
scheduler=
peer=
traces=
flags=()
for word in "${@:5}"; do
  case $word in
    --rate=*) rate=${word#*=} ;;
    --steps=*) steps=${word#*=} ;;
    --pairs=*) pairs=${word#*=} ;;
    --plans=*) plans=${word#*=} ;;
    --scheduler=*) scheduler=${word#*=} ;;
    --peer=*) peer=${word#*=} ;;
    --traces=*) traces=${word#*=} ;;
    --help)
      sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
      exit 0
      ;;
    *) flags+=("$word") ;;
  esac
done
for number in "rate=$rate" "steps=$steps" "pairs=$pairs"; do
  [[ $number =~ =[1-9][0-9]*$ ]] || { echo "error: --$number: expected a whole number of 1 or more" >&2; exit 1; }
done
[[ -z $traces || $traces == /* ]] || traces=${BUILD_WORKING_DIRECTORY:-$PWD}/$traces
[[ -z $traces || -d $traces ]] || { echo "error: --traces=$traces: expected a folder that exists" >&2; exit 1; }
case $peer in
  "" | /*) ;;
  */*) peer=${BUILD_WORKING_DIRECTORY:-$PWD}/$peer ;;
  *) peer=$(command -v "$peer" || echo "$peer") ;;
esac
[[ -z $peer || -f $peer && -x $peer ]] || { echo "error: --peer=$peer: expected a Python, there is no such program" >&2; exit 1; }
[[ $steps -ge 4 ]] || { echo "error: --steps=$steps: expected 4 or more, the first three are not counted" >&2; exit 1; }

. benchmarks/shaped_link.sh
if [[ ${WEFT_IN_NAMESPACE:-} != 1 ]]; then
  space=(--user --map-root-user --net --mount --pid --fork --mount-proc)
  unshare "${space[@]}" true || { echo "error: the kernel refuses namespaces, and without them there is no link" >&2; exit 1; }
  exec unshare "${space[@]}" env WEFT_IN_NAMESPACE=1 "$0" "$@"
fi
train=$(realpath "$1")
weft_run=$(realpath "$2")
report=$(realpath "$3")
own_pieces=$(realpath "$4")
peer_script=$(realpath benchmarks/peers/pytorch_overlap.py)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1

make_link
for i in $(seq 1 2000); do echo "line $i of the tale, $((i * i % 97)) and so on"; done >text.txt
model=(--data="$dir/text.txt" --mesh=dp=2 --layers=6 --heads=6 --dim=384 --context=256 --batch=16 --threads=1 --sample=0
  --eval_every=0 --log_format=json "--steps=$steps")
nodes=(--nnodes=2 --nproc-per-node=1 --master-addr=10.77.0.1 --master-port=29500 --rdzv-id=overlap)

gloo_at=(WEFT_STORE_TOKEN=secret WEFT_GLOO_HOST=10.77.0.N)

# write_plan PLAN: into plan.PLAN.json, and without overlap into plan.PLAN.inline.json.
write_plan() {
  local entries=() layer
  case $1 in
    ddp) entries=('{"path": "", "style": "DataParallel", "axis": "dp"}') ;;
    zero1) entries=('{"path": "", "style": "DataParallel", "axis": "dp", "shard_state": true}') ;;
    zero2) entries=('{"path": "", "style": "DataParallel", "axis": "dp", "shard_gradient": true}') ;;
    fsdp)
      for layer in 0 1 2 3 4; do entries+=("{\"path\": \"blocks.$layer.mlp\", \"style\": \"FullyShard\", \"axis\": \"dp\"}"); done
      entries+=('{"path": "blocks.5.mlp", "style": "FullyShard", "axis": "dp", "reshard": "never"}'
        '{"path": "blocks.*.attn", "style": "FullyShard", "axis": "dp"}'
        '{"path": "", "style": "FullyShard", "axis": "dp"}')
      ;;
    *) echo "error: --plans=$plans: expected some of ddp, zero1, zero2 and fsdp" >&2; exit 1 ;;
  esac
  local all
  all=$(IFS=,; echo "${entries[*]}")
  echo "{\"entries\": [$all], \"scheduler\": {$scheduler}}" >"plan.$1.json"
  echo "{\"entries\": [$all], \"scheduler\": {\"overlap\": false${scheduler:+, $scheduler}}}" >"plan.$1.inline.json"
}

# run NAME PROGRAM FLAGS...: trains once; steps into NAME.json, bytes that host 0 has sent into NAME.bytes.
run() {
  local name=$1 before
  shift
  before=$(sent_bytes)
  on_host 1 env "${gloo_at[@]/%N/2}" "$weft_run" "${nodes[@]}" --node-rank=1 "$@" >/dev/null 2>node1.err &
  on_host 0 env "${gloo_at[@]/%N/1}" "$weft_run" "${nodes[@]}" --node-rank=0 "$@" >"$name.json" 2>node0.err || {
    echo "error: $name: $(tail -1 node0.err)" >&2
    exit 1
  }
  wait $!
  echo $(($(sent_bytes) - before)) >"$name.bytes"
}

# run_peer NAME PLAN SIZES: the same of PyTorch.
run_peer() {
  local name=$1 before
  before=$(sent_bytes)
  on_host 1 env GLOO_SOCKET_IFNAME=cable1 RANK=1 "$peer" "$peer_script" "--parallel=$2" "--sizes=$3" "--steps=$steps" \
    >/dev/null 2>peer1.err &
  on_host 0 env GLOO_SOCKET_IFNAME=cable0 RANK=0 "$peer" "$peer_script" "--parallel=$2" "--sizes=$3" "--steps=$steps" \
    >"$name.json" 2>peer0.err || { echo "error: $name: $(tail -1 peer0.err)" >&2; exit 1; }
  wait $!
  echo $(($(sent_bytes) - before)) >"$name.bytes"
}

# run_pumped NAME PLAN: steps that wait for nobody, while others send as much as a step of the plan does.
run_pumped() {
  local ends=()
  ip netns exec host1 python3 "$report" pump_there 10.77.0.2 "$2" 2>pump1.err &
  ends+=($!)
  ip netns exec host0 python3 "$report" pump_here 10.77.0.2 "$2" 2>pump0.err &
  ends+=($!)
  run "$1" "$own_pieces" "--plan=$PWD/plan.$2.json" "--steps=$steps"
  kill "${ends[@]}" || { echo "error: $1: what moves beside has ended: $(tail -1 pump0.err) $(tail -1 pump1.err)" >&2; exit 1; }
  wait "${ends[@]}" 2>/dev/null
}

shape "$rate"
ip netns exec host1 python3 "$report" receive 10.77.0.2 &
on_host 0 python3 "$report" send 10.77.0.2 >rate || exit 1
wait $!
for plan in ${plans//,/ }; do
  write_plan "$plan"
  for ((pair = 1; pair <= pairs; pair++)); do
    unshape
    run "$plan.free.$pair" "$train" "${model[@]}" "--plan=$PWD/plan.$plan.json" "${flags[@]}"
    run "$plan.own_pieces.$pair" "$own_pieces" "--plan=$PWD/plan.$plan.json" "--steps=$steps"
    run_pumped "$plan.pumped_free.$pair" "$plan"
    shape "$rate"
    run_pumped "$plan.pumped_shaped.$pair" "$plan"
    run "$plan.shaped.$pair" "$train" "${model[@]}" "--plan=$PWD/plan.$plan.json" "${flags[@]}"
    run "$plan.inline.$pair" "$train" "${model[@]}" "--plan=$PWD/plan.$plan.inline.json" "${flags[@]}"
    [[ -n $peer ]] || continue
    for sizes in default same; do
      unshape
      run_peer "$plan.peer_$sizes.free.$pair" "$plan" "$sizes"
      shape "$rate"
      run_peer "$plan.peer_$sizes.shaped.$pair" "$plan" "$sizes"
    done
  done
  if [[ -n $traces ]]; then
    for way in "$plan" "$plan.inline"; do
      run "$way.traced" "$train" "${model[@]}" "--plan=$PWD/plan.$way.json" "--trace=$traces/$way.json" "${flags[@]}"
    done
  fi
  python3 "$report" figures "$plan" "$pairs" || exit 1
  if [[ -n $peer ]]; then python3 "$report" peer "$plan" "$pairs" || exit 1; fi
done

#!/bin/bash
# How much of the communication of gradients and parameters hides behind compute, on a link that is slow enough to see:
#
#   bazel run //benchmarks:overlap -- [--rate=MBIT] [--steps=N] [--pairs=N] [--plans=ddp,fsdp] [TRAIN_GPT_FLAG...]
#
# Two processes train a small GPT (6 layers, 384 wide, 16 x 256), one thread each, in two network namespaces, each with its
# own /dev/shm. The cable between them is shaped to MBIT (1000) by a token bucket at both ends, or not, in turn, as many
# times as --pairs says. Prints one JSON object per line, as the other benchmarks do (`figure.h`):
#
#   overlap/PLAN/exposed    (step shaped - step unshaped) / (bytes that a rank sends / measured rate of the link)
#   overlap/PLAN/own        the same share by the trainer's own account: exposed seconds, less those unshaped, over the same
#   overlap/PLAN/step       step shaped / step unshaped; medians
#   overlap/PLAN/inline     the same with --overlap=false: what a wait for every collective costs
#
# Losses shaped and unshaped are the same bits, or it exits 1, as it does where the kernel refuses namespaces.
set -u
rate=1000
steps=8
pairs=3
plans=ddp,fsdp
flags=()
for word in "${@:4}"; do
  case $word in
    --rate=*) rate=${word#*=} ;;
    --steps=*) steps=${word#*=} ;;
    --pairs=*) pairs=${word#*=} ;;
    --plans=*) plans=${word#*=} ;;
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
[[ $steps -ge 4 ]] || { echo "error: --steps=$steps: expected 4 or more, the first three are not counted" >&2; exit 1; }

if [[ ${WEFT_IN_NAMESPACE:-} != 1 ]]; then
  space=(--user --map-root-user --net --mount --pid --fork --mount-proc)
  unshare "${space[@]}" true || { echo "error: the kernel refuses namespaces, and without them there is no link" >&2; exit 1; }
  exec unshare "${space[@]}" env WEFT_IN_NAMESPACE=1 "$0" "$@"
fi
train=$(realpath "$1")
weft_run=$(realpath "$2")
report=$(realpath "$3")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1

mount -t tmpfs none /run && mkdir -p /run/netns || exit 1
ip link set lo up
for host in 0 1; do ip netns add "host$host" || exit 1; done
ip link add cable0 netns host0 type veth peer name cable1 netns host1 || exit 1
for host in 0 1; do
  ip -n "host$host" link set lo up
  ip -n "host$host" address add "10.77.0.$((host + 1))/24" dev "cable$host"
  ip -n "host$host" link set "cable$host" up
done

shape() {
  for host in 0 1; do
    tc -n "host$host" qdisc replace dev "cable$host" root tbf rate "${rate}mbit" burst 256kb latency 100ms || exit 1
  done
}
unshape() {
  for host in 0 1; do tc -n "host$host" qdisc delete dev "cable$host" root 2>/dev/null; done
}
# Bytes that host 0 has put on the cable: of /proc, which shows the namespace of its reader.
sent_bytes() { ip netns exec host0 awk '/cable0:/ { print $10 }' /proc/net/dev; }

# on_host N COMMAND...: there, with a /dev/shm of its own.
on_host() {
  local host=$1
  shift
  ip netns exec "host$host" bash -c 'mount -t tmpfs none /dev/shm && exec "$@"' bash \
    env "WEFT_GLOO_HOST=10.77.0.$((host + 1))" WEFT_STORE_TOKEN=secret "$@"
}

for i in $(seq 1 2000); do echo "line $i of the tale, $((i * i % 97)) and so on"; done >text.txt
model=(--data="$dir/text.txt" --mesh=dp=2 --layers=6 --heads=6 --dim=384 --context=256 --batch=16 --threads=1 --sample=0
  --eval_every=0 --log_format=json "--steps=$steps")
nodes=(--nnodes=2 --nproc-per-node=1 --master-addr=10.77.0.1 --master-port=29500 --rdzv-id=overlap)

# run NAME FLAGS...: trains once; steps into NAME.json, bytes that host 0 has sent into NAME.bytes.
run() {
  local name=$1 before
  shift
  before=$(sent_bytes)
  on_host 1 "$weft_run" "${nodes[@]}" --node-rank=1 "$train" "${model[@]}" "$@" >/dev/null 2>node1.err &
  on_host 0 "$weft_run" "${nodes[@]}" --node-rank=0 "$train" "${model[@]}" "$@" >"$name.json" 2>node0.err || {
    echo "error: $name: $(tail -1 node0.err)" >&2
    exit 1
  }
  wait $!
  echo $(($(sent_bytes) - before)) >"$name.bytes"
}

shape
ip netns exec host1 python3 "$report" receive 10.77.0.2 &
on_host 0 python3 "$report" send 10.77.0.2 >rate || exit 1
wait $!
for plan in ${plans//,/ }; do
  for ((pair = 1; pair <= pairs; pair++)); do
    unshape
    run "$plan.free.$pair" "--plan=$plan" "${flags[@]}"
    shape
    run "$plan.shaped.$pair" "--plan=$plan" "${flags[@]}"
    run "$plan.inline.$pair" "--plan=$plan" --overlap=false "${flags[@]}"
  done
  python3 "$report" figures "$plan" "$pairs" || exit 1
done

#!/bin/bash
# What compressed gradients save, and what they cost:
#
#   bazel run //benchmarks:compression -- [--rate=MBIT] [--steps=N] [--train_steps=N] [--seeds=N] ["--methods=A;B"] [--link=false] [--table] [TRAIN_GPT_FLAG...]
#
# Part one, the link: as benchmarks:overlap, two processes train a small GPT (6 layers, 384 wide, 16 x 256; --steps=8, the first
# three are not counted), one thread each, in two network namespaces with a cable between them of MBIT (1000).
# Part two, learning: train_gpt's default run over dp=2, of --train_steps (2000; 0: none) steps, with --seeds (1) seeds from
# 1337 on. --link=false leaves part one out. Methods are separated by semicolons; "none" is always run first.
#
# Prints one JSON object per line, as the other benchmarks do (`figure.h`):
#
#   compression/METHOD/bytes      megabytes of a step, both ranks together, and what that is of "none"'s
#   compression/METHOD/step       milliseconds of a step on the link: median; "none"'s
#   compression/METHOD/val_loss   validation loss after the last step, a mean over the seeds; target 1.01 of "none"'s
#
# With --table there is a table of all of it at the end, in Markdown. It exits 1 where the kernel refuses namespaces.
set -u
rate=1000
steps=8
train_steps=2000
seeds=1
link=true
table=
methods='bf16;f16;int8;onebit;topk(0.01);topk(0.1);randomk(0.1);powersgd(1);powersgd(4)'
flags=()
for word in "${@:4}"; do
  case $word in
    --rate=*) rate=${word#*=} ;;
    --steps=*) steps=${word#*=} ;;
    --train_steps=*) train_steps=${word#*=} ;;
    --seeds=*) seeds=${word#*=} ;;
    --methods=*) methods=${word#*=} ;;
    --link=true | --link=false) link=${word#*=} ;;
    --table) table=--table ;;
    --help)
      sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
      exit 0
      ;;
    *) flags+=("$word") ;;
  esac
done
for number in "rate=$rate" "steps=$steps" "seeds=$seeds"; do
  [[ $number =~ =[1-9][0-9]*$ ]] || { echo "error: --$number: expected a whole number of 1 or more" >&2; exit 1; }
done
[[ $train_steps =~ ^[0-9]+$ ]] || { echo "error: --train_steps=$train_steps: expected a whole number" >&2; exit 1; }
[[ $steps -ge 4 ]] || { echo "error: --steps=$steps: expected 4 or more, the first three are not counted" >&2; exit 1; }
IFS=';' read -ra all <<<"none;$methods"

. benchmarks/shaped_link.sh
if [[ $link == true && ${WEFT_IN_NAMESPACE:-} != 1 ]]; then
  space=(--user --map-root-user --net --mount --pid --fork --mount-proc)
  unshare "${space[@]}" true || { echo "error: the kernel refuses namespaces, and without them there is no link" >&2; exit 1; }
  exec unshare "${space[@]}" env WEFT_IN_NAMESPACE=1 "$0" "$@"
fi
train=$(realpath "$1")
weft_run=$(realpath "$2")
report=$(realpath "$3")
export BUILD_WORKING_DIRECTORY=${BUILD_WORKING_DIRECTORY:-$PWD}  # which paths among the flags are taken from
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
for i in $(seq 1 2000); do echo "line $i of the tale, $((i * i % 97)) and so on"; done >text.txt
model=(--data="$dir/text.txt" --mesh=dp=2 --layers=6 --heads=6 --dim=384 --context=256 --batch=16 --threads=1 --sample=0
  --eval_every=0 --log_format=json "--steps=$steps")
nodes=(--nnodes=2 --nproc-per-node=1 --master-addr=10.77.0.1 --master-port=29500 --rdzv-id=compression)
gloo_at=(WEFT_STORE_TOKEN=secret WEFT_GLOO_HOST=10.77.0.N)

# on_link NUMBER METHOD: trains once; steps into NUMBER.link.json.
on_link() {
  local method=--communication=$2
  on_host 1 env "${gloo_at[@]/%N/2}" "$weft_run" "${nodes[@]}" --node-rank=1 "$train" "${model[@]}" "$method" "${flags[@]}" \
    >/dev/null 2>node1.err &
  on_host 0 env "${gloo_at[@]/%N/1}" "$weft_run" "${nodes[@]}" --node-rank=0 "$train" "${model[@]}" "$method" "${flags[@]}" \
    >"$1.link.json" 2>node0.err || { echo "error: $2: $(tail -1 node0.err)" >&2; exit 1; }
  wait $!
}

if [[ $link == true ]]; then
  make_link
  shape "$rate"
fi
for i in "${!all[@]}"; do
  method=${all[i]}
  [[ $link != true ]] || on_link "$i" "$method"
  for ((seed = 0; seed < seeds && train_steps > 0; seed++)); do
    "$train" --mesh=dp=2 "--communication=$method" "--steps=$train_steps" "--seed=$((1337 + seed))" --sample=0 \
      --log_format=json "${flags[@]}" >"$i.run.$seed.json" 2>run.err || { echo "error: $method: $(tail -1 run.err)" >&2; exit 1; }
  done
  python3 "$report" figures "$method" "$i" || exit 1
done
[[ -z $table ]] || python3 "$report" table "${all[@]}"

#!/bin/bash
# train_gpt as processes: under weft_run and under mpirun it trains as it does on threads, to the bit; a checkpoint goes
# from the one to the other; what does not fit is an error; a rank that dies ends the job, or starts it again.
# Arguments: train_gpt, weft_run, README.md.
set -u
train=$PWD/$1
weft_run=$PWD/$2
readme=$PWD/$3
dir=$(mktemp -d "${TEST_TMPDIR:-/tmp}/train_gpt.XXXXXX")
cd "$dir" || exit 1
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

for i in $(seq 1 400); do echo "line $i of the tale, $((i * i % 97)) and so on"; done > text.txt
anywhere=(--data=text.txt --layers=2 --heads=4 --dim=32 --context=16 --batch=4 --dropout=0.1 --log_format=json --sample=0)
small=("${anywhere[@]}" "--mesh=dp=2,tp=2")

# What must not depend on how ranks run: step, loss, gradient norm.
losses() { sed -n 's/^{"step":\([0-9]*\),"loss":\([^,]*\),"grad_norm":\([^,]*\),.*/\1 \2 \3/p' "$1"; }

same_losses() {
  [[ $(losses "$1" | wc -l) -gt 0 ]] || fail "$1: no steps: $(cat "$1")"
  diff <(losses "$1") <(losses "$2") > /dev/null || fail "$1 and $2 differ: $(diff <(losses "$1") <(losses "$2"))"
}

# Of f64: the sums of another mesh round in another order.
close_losses() {
  paste -d' ' <(losses "$1") <(losses "$2") | awk '
    function far(a, b) { return (a - b) ^ 2 > (1e-13 * a) ^ 2 }
    NF != 6 || $1 != $4 || far($2, $5) || far($3, $6) { exit bad = 1 } END { exit bad || NR == 0 }' ||
    fail "$1 and $2 differ: $(diff <(losses "$1") <(losses "$2"))"
}

"$train" "${small[@]}" --steps=10 --eval_every=5 > threads.json 2> threads.err || fail "threads: $(tail -1 threads.err)"

# --- weft_run: stdout is rank 0's alone, so that JSON stays JSON.
"$weft_run" --nproc-per-node=4 "$train" "${small[@]}" --steps=10 --eval_every=5 --save=processes.safetensors \
  > processes.json 2> processes.err || fail "weft_run: $(tail -5 processes.err)"
same_losses threads.json processes.json
diff <(grep val_loss threads.json) <(grep val_loss processes.json) > /dev/null || fail "evaluations differ"
grep -v '^{.*}$' processes.json > other.txt && fail "stdout holds something else: $(head -1 other.txt)"

# --- What processes have saved, threads go on from, and the other way round.
"$train" --resume=processes.safetensors --data=text.txt --steps=12 --eval_every=0 --log_format=json --sample=0 \
  > resumed_threads.json 2> resumed.err || fail "resume on threads: $(tail -1 resumed.err)"
"$weft_run" --nproc-per-node=4 "$train" --resume=processes.safetensors --data=text.txt --steps=12 --eval_every=0 \
  --log_format=json --sample=0 > resumed_processes.json 2> resumed.err || fail "resume: $(tail -5 resumed.err)"
same_losses resumed_threads.json resumed_processes.json
[[ $(losses resumed_threads.json | head -1 | cut -d' ' -f1) == 11 ]] || fail "resume does not go on at step 11"

# --- Other plans.
"$train" "${small[@]}" --plan=fsdp --sequence_parallel --steps=4 --eval_every=0 > fsdp_threads.json 2> fsdp.err ||
  fail "fsdp: $(tail -1 fsdp.err)"
"$weft_run" --nproc-per-node=4 "$train" "${small[@]}" --plan=fsdp --sequence_parallel --steps=4 --eval_every=0 \
  --trace=trace.json > fsdp_processes.json 2> fsdp.err || fail "fsdp, weft_run: $(tail -5 fsdp.err)"
same_losses fsdp_threads.json fsdp_processes.json
for rank in 1 2 3; do
  grep -q "\"pid\":$rank,\"name\":\"clock_offset\"" "trace.json.$rank" || fail "trace.json.$rank tells no clock offset"
done

# --- mpirun. The shared memory of OpenMPI needs a short path.
TMPDIR=$(mktemp -d /tmp/weft_mpi.XXXXXX)
export TMPDIR
# Jobs that sandboxes start at once take each other's names in /dev/shm: their process numbers are the same.
on_mpi=(env "OMPI_MCA_btl_vader_backing_directory=$TMPDIR" timeout 100 mpirun --allow-run-as-root --oversubscribe --mca mpi_yield_when_idle 1 -n 4)
"${on_mpi[@]}" "$train" "${small[@]}" --steps=6 --eval_every=0 --backend=mpi > mpi.json 2> mpi.err || fail "mpirun: $(tail -5 mpi.err)"
losses threads.json | head -6 > first_six.txt
[[ $(losses mpi.json | wc -l) == 6 ]] || fail "mpirun: expected 6 steps: $(cat mpi.json)"
diff first_six.txt <(losses mpi.json) > /dev/null || fail "mpirun differs: $(diff first_six.txt <(losses mpi.json))"
# As the README has it; root may run the test, too.
read -ra printed <<< "$(grep '^    mpirun ' "$readme")"
[[ ${printed[0]} == mpirun && " ${printed[*]} " == *" bazel-bin/examples/train_gpt "* ]] || fail "the README runs no mpirun: ${printed[*]}"
printed=("${printed[@]/#bazel-bin\/examples\/train_gpt/$train}")
env "OMPI_MCA_btl_vader_backing_directory=$TMPDIR" timeout 100 mpirun --allow-run-as-root "${printed[@]:1}" "${anywhere[@]}" --steps=6 --eval_every=0 \
  > printed.json 2> printed.err || fail "the README's ${printed[*]}: $(tail -5 printed.err)"
diff first_six.txt <(losses printed.json) > /dev/null || fail "the README's mpirun differs: $(diff first_six.txt <(losses printed.json))"

# --- Bucket sizes, units gathered ahead, overlap and priority between lanes change no bit, whatever moves the bytes.
# Of three steps the first learns the order of buckets and units, and the third sees the second's update.
# flags_of PLAN: its mesh, and what train_gpt is to do.
flags_of() {
  local -A flags=([ddp]="--mesh=dp=2,tp=2" [fsdp]="--mesh=dp=2,tp=2 --sequence_parallel" [zero1]="--mesh=dp=4"
                  [zero2]="--mesh=dp=2,tp=2" [hsdp]="--mesh=replica=2,shard=2")
  echo "--plan=$1 ${flags[$1]} --steps=3 --eval_every=0"
}
for plan in ddp zero1 zero2 fsdp hsdp; do
  read -ra of_plan <<< "$(flags_of "$plan")"
  "$train" "${anywhere[@]}" "${of_plan[@]}" > "${plan}_threads.json" 2> plan.err || fail "$plan: $(tail -1 plan.err)"
done
# schedule PLAN FLAG...: as on threads with the plan's defaults.
schedule() {
  local plan=$1 common of_plan
  shift
  read -ra of_plan <<< "$(flags_of "$plan")"
  common=("${anywhere[@]}" "${of_plan[@]}")
  "$weft_run" --nproc-per-node=4 "$train" "${common[@]}" "$@" > schedule_gloo.json 2> schedule.err ||
    fail "$plan $*: $(tail -5 schedule.err)"
  same_losses "${plan}_threads.json" schedule_gloo.json
  "${on_mpi[@]}" "$train" "${common[@]}" "$@" --backend=mpi > schedule_mpi.json 2> schedule.err ||
    fail "$plan $* by mpi: $(tail -5 schedule.err)"
  same_losses "${plan}_threads.json" schedule_mpi.json
}
schedule ddp --bucket_mb=0.002
schedule ddp --overlap=false
schedule zero1 --bucket_mb=0.002
schedule zero1 --overlap=false
schedule zero2 --bucket_mb=0.002
schedule zero2 --overlap=false
schedule fsdp --prefetch=0
schedule fsdp --prefetch=2 --bucket_mb=0.002
schedule fsdp --overlap=false
schedule fsdp --lane_priority=true --bucket_mb=0.002
schedule hsdp --prefetch=0
schedule hsdp --prefetch=2 --bucket_mb=0.002
schedule hsdp --overlap=false
rm -rf "$TMPDIR"
unset TMPDIR

# --- A mesh that follows the ranks: the fifth has no place; and a batch that does not divide.
"$train" "${small[@]}" --mesh= --dtype=f64 --batch=5 --steps=4 --eval_every=2 > one.json 2> one.err || fail "one: $(tail -1 one.err)"
mkdir apart
# The fifth stands elsewhere: what it writes is seen.
# shellcheck disable=SC2016  # of the ranks' shells
elsewhere='[[ $RANK != 4 ]] || cd apart; exec "$@"'
"$weft_run" --nproc-per-node=5 bash -c "$elsewhere" train "$train" "${small[@]}" "--data=$PWD/text.txt" --mesh=dp=auto,tp=2 \
  --dtype=f64 --batch=5 --steps=4 --eval_every=2 --trace=spare.json > auto.json 2> auto.err || fail "dp=auto: $(tail -5 auto.err)"
close_losses one.json auto.json
grep -q "weft: rank 4 is a spare: the mesh has 4 of the 5 ranks" auto.err || fail "the spare is not named: $(cat auto.err)"
[[ $(echo spare.json*) == "spare.json spare.json.1 spare.json.2 spare.json.3" ]] || fail "traces: $(echo spare.json*)"
grep -q '"ph":"X","pid":0' spare.json || fail "no spans of rank 0: $(head -3 spare.json)"
[[ -z $(ls apart) ]] || fail "a spare has written what is rank 0's: $(ls apart)"
"$weft_run" --nproc-per-node=5 "$train" "${anywhere[@]}" --mesh_choices="dp=4,tp=2;dp=3" --dtype=f64 --batch=5 --steps=4 \
  --eval_every=2 > choice.json 2> choice.err || fail "--mesh_choices: $(tail -5 choice.err)"
close_losses one.json choice.json
grep -q "weft: ranks 3 to 4 are spares: the mesh has 3 of the 5 ranks" choice.err || fail "no spares: $(cat choice.err)"

# --- What does not fit together is said in one line.
expect_error() {
  local expected=$1
  shift
  "$@" > bad.out 2> bad.err && fail "$*: expected an error"
  grep -qF -- "$expected" bad.err || fail "$*: expected '$expected', got: $(cat bad.err)"
}
expect_error "has started 2 processes, but the mesh has 4 ranks: start one process per rank, 4, or change the mesh (--mesh)" "$weft_run" --nproc-per-node=2 "$train" "${small[@]}"
expect_error "--backend=local, but a launcher (weft_run, torchrun or whatever else has set RANK) has started this as rank" \
  "$weft_run" --nproc-per-node=4 "$train" "${small[@]}" --backend=local
expect_error "--backend=gloo, but no launcher has started this" "$train" "${small[@]}" --backend=gloo

# --- A rank that is killed: every other names it, and weft_run ends with its story.
"$weft_run" --nproc-per-node=4 --log-dir=logs "$train" "${small[@]}" --steps=1000000 --eval_every=0 \
  > killed.json 2> killed.err &
pid=$!
until [[ $(wc -l < killed.json) -ge 5 ]]; do sleep 0.05; kill -0 $pid 2> /dev/null || break; done
victim=$(for p in /proc/[0-9]*; do
  tr '\0' '\n' < "$p/environ" 2> /dev/null | grep -qx 'RANK=2' && tr '\0' ' ' < "$p/cmdline" | grep -q train_gpt &&
    echo "${p#/proc/}"
done | head -1)
kill -KILL "$victim"
wait $pid
status=$?
[[ $status == 137 ]] || fail "expected exit code 137 after SIGKILL of rank 2, got $status: $(tail -5 killed.err)"
grep -q "rank 2 was killed by signal 9" killed.err || fail "rank 2's end is not told: $(tail -20 killed.err)"

# --- A signal to every process of the job, as batch systems and service managers send it: the step is saved.
"$weft_run" --nproc-per-node=4 "$train" "${small[@]}" --steps=1000000 --eval_every=0 --checkpoint_dir=told --save_every=0 \
  > told.json 2> told.err &
pid=$!
until [[ $(wc -l < told.json) -ge 5 ]]; do sleep 0.05; kill -0 $pid 2> /dev/null || break; done
agent=$(pgrep -P $pid)
# shellcheck disable=SC2046
kill -TERM $(pgrep -P "$agent") "$agent" $pid
wait $pid
status=$?
[[ $status == 143 ]] || fail "expected exit code 143 after SIGTERM to all, got $status: $(tail -5 told.err)"
[[ $(basename told/step-*) == "$(printf 'step-%09d' "$(losses told.json | wc -l)")" ]] ||
  fail "after SIGTERM to all: $(ls told), $(losses told.json | wc -l) steps: $(tail -5 told.err)"

# --- The last step is saved before it is evaluated, which may last longer than a signal leaves time for.
yes "$(cat text.txt)" | head -c 4000000 > long.txt
"$weft_run" --nproc-per-node=4 --stop-grace=5s "$train" "${small[@]}" --data=long.txt --val_fraction=0.9 --steps=1000000 --eval_every=1000000 \
  --eval_batches=1000000 --checkpoint_dir=hasty --save_every=0 > hasty.json 2> hasty.err &
pid=$!
until [[ $(wc -l < hasty.json) -ge 5 ]]; do sleep 0.05; kill -0 $pid 2> /dev/null || break; done
kill -TERM $pid
wait $pid
grep -q val_loss hasty.json && fail "an evaluation that lasts 5 s is over"
[[ $(basename hasty/step-*) == "$(printf 'step-%09d' "$(losses hasty.json | wc -l)")" ]] ||
  fail "after SIGTERM with little time: $(ls hasty), $(losses hasty.json | wc -l) steps: $(tail -5 hasty.err)"

exit $((failures > 0))

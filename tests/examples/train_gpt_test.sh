#!/bin/bash
# The face of train_gpt and sample_gpt, end to end: JSON lines, equality over meshes, save and resume, signals, bad input.
# Arguments: the two programs.
set -u
train=$PWD/$1
sample=$PWD/$2
dir=$(mktemp -d "${TEST_TMPDIR:-/tmp}/train_gpt.XXXXXX")
cd "$dir" || exit 1
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

# A text with some structure: enough for 16-token windows in both parts.
for i in $(seq 1 400); do echo "line $i of the tale, $((i * i % 97)) and so on"; done > text.txt
small=(--data=text.txt --layers=2 --heads=4 --dim=32 --context=16 --batch=4 --dropout=0.1 --log_format=json --sample=0)

# What must not depend on the machine: step, loss, gradient norm.
losses() { sed -n 's/^{"step":\([0-9]*\),"loss":\([^,]*\),"grad_norm":\([^,]*\),.*/\1 \2 \3/p' "$1"; }

# --- JSON: one object for every step, evaluations, the sample; nothing else on stdout.
"$train" "${small[@]}" --steps=10 --eval_every=5 --eval_batches=2 --sample=20 --save=full.safetensors \
  > full.json 2> full.err || fail "training: $(tail -1 full.err)"
[[ $(losses full.json | wc -l) == 10 ]] || fail "expected 10 step objects: $(cat full.json)"
[[ $(grep -c '^{"step":[0-9]*,"val_loss":[0-9.]*}$' full.json) == 2 ]] || fail "expected 2 evaluations"
[[ $(grep -c '^{"sample":".*"}$' full.json) == 1 ]] || fail "expected a sample"
[[ $(wc -l < full.json) == 13 ]] || fail "stdout holds something else: $(cat full.json)"
for field in lr step_ms data_wait_s tokens_per_s exposed_fraction waiting_fraction comm_fraction comm_bytes peak_bytes; do
  grep -q "\"$field\":[0-9]" full.json || fail "no field $field"
done

# --- A text of one line, of whose characters a new line is none, has a sample too.
# shellcheck disable=SC2046  # numbers
printf 'part %d of one line, ' $(seq 1 60) > line.txt
"$train" "${small[@]}" --data=line.txt --tokenizer=chars --mesh= --steps=1 --eval_every=0 --sample=5 --save=line.safetensors > line.json 2> line.err ||
  fail "a text without a new line: $(tail -1 line.err)"
grep -q '^{"sample":".*"}$' line.json || fail "no sample of a text without a new line: $(cat line.json)"
# So has the model, from a program that does not know the text: it begins with a character that it has. One that is given has to be among them.
"$sample" --model=line.safetensors --tokens=5 > line.out 2> line.err || fail "sample_gpt, of a text without a new line: $(tail -1 line.err)"
[[ $(cat line.out; echo end) == ' '?????$'\nend' ]] || fail "sample_gpt, of a text without a new line: $(cat line.out)"
"$sample" --model=line.safetensors --tokens=5 --prompt=Z > line.out 2> line.err && fail "sample_gpt goes on from a character that it does not have"
grep -q '^error: --prompt: character U+005A at byte offset 0 is not in the vocabulary' line.err || fail "sample_gpt --prompt=Z: $(tail -1 line.err)"

# --- Batches of an evaluation that are more than the text has, however many, are all of it.
for batches in 1000 9000000000000000000; do
  "$train" "${small[@]}" --mesh= --steps=1 --eval_batches=$batches > all.$batches.json 2> all.err ||
    fail "--eval_batches=$batches: $(tail -1 all.err)"
done
grep -q '"val_loss":' all.1000.json || fail "no evaluation: $(cat all.1000.json)"
diff <(grep '"val_loss":' all.1000.json) <(grep '"val_loss":' all.9000000000000000000.json) || fail "--eval_batches beyond the text"

# --- Two runs are the same bits; a resumed one goes on after the last step.
"$train" "${small[@]}" --steps=10 --eval_every=0 > straight.json 2> /dev/null
"$train" "${small[@]}" --steps=10 --eval_every=0 --save=long.safetensors > long.json 2> /dev/null
"$train" --resume=long.safetensors --steps=12 --eval_every=0 --log_format=json --sample=0 > more.json 2> more.err ||
  fail "resume: $(tail -1 more.err)"
[[ $(losses more.json | head -1 | cut -d' ' -f1) == 11 ]] || fail "resume does not go on at step 11: $(cat more.json)"
diff <(losses straight.json) <(losses long.json) > /dev/null || fail "two equal runs differ"

# --- A signal finishes the step, saves, and exits 128 + its number; going on from there changes nothing.
"$train" "${small[@]}" --steps=100000 --eval_every=0 --save=stopped.safetensors > stopped.json 2> /dev/null &
pid=$!
until [[ $(wc -l < stopped.json) -ge 5 ]]; do sleep 0.05; kill -0 $pid || break; done
kill -INT $pid
wait $pid
[[ $? == 130 ]] || fail "expected exit code 130 after SIGINT"
steps=$(losses stopped.json | wc -l)
"$train" --resume=stopped.safetensors --eval_every=0 --log_format=json --sample=0 > resumed.json 2> /dev/null &
pid=$!
until [[ $(wc -l < resumed.json) -ge 6 ]]; do sleep 0.05; kill -0 $pid || break; done
kill -TERM $pid
wait $pid
[[ $? == 143 ]] || fail "expected exit code 143 after SIGTERM"
"$train" "${small[@]}" --steps=100000 --eval_every=0 > reference.json 2> /dev/null &
pid=$!
until [[ $(wc -l < reference.json) -ge $((steps + 5)) ]]; do sleep 0.05; kill -0 $pid || break; done
kill -TERM $pid
wait $pid
cat <(losses stopped.json) <(losses resumed.json | head -5) > joined
diff <(losses reference.json | head -$((steps + 5))) joined || fail "stopped and resumed differs from uninterrupted"

# --- Shuffled epochs: a resumed run has the bits of one that was not stopped; another batch and other ranks go on at the
# same window; another seed is refused.
epoch=("${small[@]}" --shuffle=epoch --eval_every=0 --warmup=0 --min_lr=1e-3)
"$train" "${epoch[@]}" --steps=10 > epoch.json 2> /dev/null
"$train" "${epoch[@]}" --steps=6 --save=epoch.safetensors > epoch_begun.json 2> /dev/null
"$train" --resume=epoch.safetensors --steps=10 --eval_every=0 --log_format=json --sample=0 > resumed.json 2> resumed.err ||
  fail "--shuffle=epoch, resumed: $(tail -1 resumed.err)"
diff <(losses epoch.json) <(cat <(losses epoch_begun.json) <(losses resumed.json)) > /dev/null ||
  fail "--shuffle=epoch: a resumed run differs from an uninterrupted one"
[[ $(losses epoch.json | cut -d' ' -f2) != $(losses long.json | cut -d' ' -f2) ]] || fail "--shuffle=epoch draws as without"
"$train" --resume=epoch.safetensors --mesh=dp=2 --batch=6 --steps=8 --save=epoch2.safetensors --sample=0 > /dev/null 2> more.err ||
  fail "--shuffle=epoch with another batch: $(tail -1 more.err)"
grep -aq 'samples\\":36,' epoch2.safetensors || fail "4 x 6 + 6 x 2 windows are not 36"
"$train" --resume=epoch.safetensors --seed=1 > /dev/null 2> more.err && fail "another seed goes on in the old order"
grep -q '^error: .*the position is one of shuffled(.*seed 1337), this run.s data is shuffled(.*seed 1)' more.err ||
  fail "another seed: $(cat more.err)"

# A context that was not said is saved as what it was.
"$train" --data=text.txt --layers=1 --heads=2 --dim=16 --batch=2 --steps=1 --eval_every=0 --sample=0 --save=context.safetensors > /dev/null 2>&1
"$train" --resume=context.safetensors --context=64 --steps=2 --eval_every=0 --sample=0 > /dev/null 2> more.err ||
  fail "the context that a run has may not be said: $(tail -1 more.err)"

# The same from a folder of checkpoints, which a run goes on from by itself.
"$train" "${epoch[@]}" --steps=6 --checkpoint_dir=epochs --save_every=3 > epoch_begun.json 2> more.err || fail "$(tail -1 more.err)"
"$train" "${epoch[@]}" --steps=10 --checkpoint_dir=epochs --save_every=3 > resumed.json 2> more.err || fail "$(tail -1 more.err)"
diff <(losses epoch.json) <(cat <(losses epoch_begun.json) <(losses resumed.json)) > /dev/null ||
  fail "--shuffle=epoch: a run that goes on from --checkpoint_dir differs from an uninterrupted one"

# --- A configuration file: the flags of a run, which make the same run; the command line counts.
"$train" "${small[@]}" --steps=10 --eval_every=0 --print_config > run.json || fail "--print_config"
"$train" --config=run.json > config.json 2> config.err || fail "--config: $(tail -1 config.err)"
diff <(losses long.json) <(losses config.json) > /dev/null || fail "--config is another run"
"$train" --config=run.json --steps=3 > config.json 2> /dev/null
[[ $(losses config.json | wc -l) == 3 ]] || fail "a flag does not override the file"
echo '{"layer": 2}' > wrong.json
"$train" --config=wrong.json 2> config.err && fail "an unknown key is taken"
grep -q '^error: --config=.*wrong.json: unknown key "layer": did you mean "layers"?$' config.err || fail "$(cat config.err)"

# --- The checkpoint loads on other meshes, and samples are text.
"$sample" --model=full.safetensors --tokens=20 --prompt='line ' > one.txt || fail "sample_gpt"
"$sample" --model=full.safetensors --tokens=20 --prompt='line ' --mesh=tp=2 > two.txt || fail "sample_gpt on tp=2"
cmp one.txt two.txt || fail "samples differ between meshes"
[[ $(head -c 5 one.txt) == "line " ]] || fail "the sample does not start with its prompt"

# A weight that is not a number: no token is drawn by it.
header=$(od -An -t u8 -N8 full.safetensors | tr -d ' ')
weight=$(tail -c +9 full.safetensors | head -c "$header" | sed -n 's/.*"head.weight":{[^}]*"data_offsets":\[\([0-9]*\),.*/\1/p')
cp full.safetensors diverged.safetensors
printf '\x00\x00\xc0\x7f' | dd of=diverged.safetensors bs=1 seek=$((8 + header + weight)) conv=notrunc status=none
for temperature in 0 0.8; do
  "$sample" --model=diverged.safetensors --tokens=3 --temperature=$temperature > one.txt 2> one.err && fail "a model that is not finite writes $(cat one.txt)"
  grep -q '^error: rank 0: sampling: the score of token 0 is nan, expected a finite number' one.err || fail "a model that is not finite: $(tail -1 one.err)"
done

# --- Saved under each plan of data parallelism and resumed under each other: as if nothing had happened.
plans=(ddp zero1 zero2 fsdp hsdp)
f64=("${small[@]}" --batch=8 --dtype=f64 --eval_every=0 --sample=0)
mesh_of() { [[ $1 == hsdp ]] && echo replica=2,shard=2 || echo dp=2; }
near() {  # the losses and norms of two runs, by step
  paste -d' ' "$1" "$2" | awk '{ for (i = 2; i <= 3; i++) { d = $i - $(i + 3); if (d < 0) d = -d; if (d > 1e-9 * $i) bad = 1 } }
                               END { exit bad || NR == 0 }'
}
"$train" "${f64[@]}" --mesh= --steps=6 2> /dev/null > whole.json || fail "one rank"
for from in "${plans[@]}"; do
  "$train" "${f64[@]}" "--mesh=$(mesh_of $from)" --plan=$from --microbatches=2 --steps=4 --save=$from.safetensors \
    > $from.json 2> $from.err || fail "--plan=$from: $(tail -1 $from.err)"
  near <(losses whole.json | head -4) <(losses $from.json) || fail "--plan=$from differs from one rank"
  for to in "${plans[@]}"; do
    "$train" --resume=$from.safetensors "--mesh=$(mesh_of $to)" --plan=$to --microbatches=1 --steps=6 --log_format=json \
      > resumed.json 2> resumed.err || fail "--plan=$to from $from: $(tail -1 resumed.err)"
    near <(losses whole.json | tail -2) <(losses resumed.json) || fail "$from resumed under $to differs"
  done
done

# --- Every optimizer: under fsdp and tensor parallelism as on one rank; saved there, resumed under zero1.
for optimizer in sgd lion adafactor muon lamb adamw8bit; do
  "$train" "${f64[@]}" --optimizer=$optimizer --schedule_lr=wsd --mesh= --steps=6 2> one.err > one.json || fail "$optimizer: $(tail -1 one.err)"
  "$train" "${f64[@]}" --optimizer=$optimizer --schedule_lr=wsd --mesh=dp=2,tp=2 --plan=fsdp --steps=6 2> /dev/null > spread.json
  near <(losses one.json) <(losses spread.json) || fail "--optimizer=$optimizer differs from one rank"
  "$train" "${f64[@]}" --optimizer=$optimizer --schedule_lr=wsd --mesh=dp=2,tp=2 --plan=fsdp --steps=6 --save=opt.safetensors > /dev/null 2>&1
  "$train" --resume=opt.safetensors --mesh=dp=2 --plan=zero1 --steps=8 --log_format=json > resumed.json 2> one.err || fail "$optimizer: $(tail -1 one.err)"
  "$train" --resume=opt.safetensors --mesh= --steps=8 --log_format=json > whole8.json 2> /dev/null
  near <(losses whole8.json) <(losses resumed.json) || fail "--optimizer=$optimizer resumed differs"
done
"$train" --resume=opt.safetensors --optimizer=lion 2> one.err > /dev/null && fail "another optimizer's state was taken"
grep -q "the checkpoint to resume from was made with 'adamw8bit'" one.err || fail "another optimizer: $(tail -1 one.err)"

# --- Stages: every step, evaluation and sample of one rank; saved and resumed on other meshes, and to the bit on the same.
staged=("${f64[@]}" --tokenizer=bytes "--mesh=pp=2,dp=2" --plan=fsdp --schedule=zbv --layers=4 --microbatches=4)
"$train" "${f64[@]}" --layers=4 --mesh= --steps=6 --eval_every=3 --eval_batches=2 --sample=20 2> /dev/null > whole4.json ||
  fail "one rank of four layers"
"$train" "${staged[@]}" --steps=6 --eval_every=3 --eval_batches=2 --sample=20 > staged.json 2> staged.err ||
  fail "stages: $(tail -1 staged.err)"
near <(losses whole4.json) <(losses staged.json) || fail "stages differ from one rank"
evaluations() { sed -n 's/^{"step":\([0-9]*\),"val_loss":\([^}]*\)}$/\1 \2 \2/p' "$1"; }
near <(evaluations whole4.json) <(evaluations staged.json) || fail "evaluations of stages differ from one rank's"
cmp <(grep sample whole4.json) <(grep sample staged.json) || fail "the sample of stages differs from one rank's"
# Microbatches that the batch is no multiple of, in stages and without.
"$train" "${f64[@]}" --batch=12 --layers=4 --mesh= --steps=3 2> /dev/null > whole12.json || fail "one rank, a batch of 12"
for mesh in "pp=2,dp=2,tp=2 --schedule=1f1b" "dp=2"; do
  # shellcheck disable=SC2086  # flags
  "$train" "${f64[@]}" --batch=12 --layers=4 --mesh=$mesh --microbatches=8 --steps=3 > uneven.json 2> uneven.err ||
    fail "8 microbatches of 12 rows on '$mesh': $(tail -1 uneven.err)"
  near <(losses whole12.json) <(losses uneven.json) || fail "8 microbatches of 12 rows on '$mesh' differ from one rank"
done
"$train" "${staged[@]}" --steps=4 --save=staged.safetensors > staged4.json 2> staged.err || fail "stages: $(tail -1 staged.err)"
for mesh in "pp=2,dp=2 --plan=fsdp --schedule=zbv --microbatches=4" "dp=2" "" "pp=4 --schedule=gpipe --microbatches=2"; do
  # shellcheck disable=SC2086  # flags
  "$train" --resume=staged.safetensors --mesh=$mesh --steps=6 --eval_every=0 --log_format=json --sample=0 \
    > resumed.json 2> resumed.err || fail "stages resumed on '$mesh': $(tail -1 resumed.err)"
  near <(losses whole4.json | tail -2) <(losses resumed.json) || fail "stages resumed on '$mesh' differ"
  [[ $mesh != pp=2* ]] || diff <(losses staged.json | tail -2) <(losses resumed.json) || fail "not the same bits on the same mesh"
done
: > stopped.json  # has the lines of the run above,
rm stopped.safetensors  # which has saved, too
"$train" "${small[@]}" --mesh=pp=2 --microbatches=2 --steps=100000 --eval_every=0 --save=stopped.safetensors > stopped.json 2> /dev/null &
pid=$!
until [[ $(wc -l < stopped.json) -ge 5 ]]; do sleep 0.05; kill -0 $pid || break; done
kill -INT $pid
wait $pid
[[ $? == 130 && -s stopped.safetensors ]] || fail "stages: expected exit code 130 after SIGINT, and a checkpoint"
"$train" --mesh=pp=2 --microbatches=2 --print_schedule > schedule.txt || fail "--print_schedule"
grep -q '^rank 0: 0UNSHARD,0F0,0SEND_F0,0F1,' schedule.txt || fail "--print_schedule prints $(cat schedule.txt)"
sed 's/^rank [01]: //' schedule.txt > lowered.csv  # sends and receives are there already
"$train" --mesh=pp=2 --microbatches=2 --schedule=lowered.csv --print_schedule > again.txt 2> again.err ||
  fail "--print_schedule of a lowered file: $(tail -1 again.err)"
diff schedule.txt again.txt || fail "--print_schedule of a lowered file prints another one"
"$train" "${small[@]}" --mesh=pp=2 --microbatches=2 --lr=9e8 --weight_decay=9e8 --warmup=0 --steps=20 --eval_every=0 \
  > nan.json 2> nan.err && fail "a loss that is not finite is no error under stages"
grep -q "step [0-9]*: .* is not finite" nan.err || fail "expected the cause: $(tail -1 nan.err)"

# Stages by measured costs: the flag that is printed makes the same run, plan and bits.
cut=("${f64[@]}" --layers=4 --mesh=pp=2 --microbatches=2 --steps=2)
"$train" "${cut[@]}" --segment_costs=measured > cut.json 2> cut.err || fail "--segment_costs=measured: $(tail -1 cut.err)"
near <(losses whole4.json | head -2) <(losses cut.json) || fail "stages by measured costs differ from one rank"
pinned=$(sed -n 's/^measured *\(--segment_costs=[-+0-9.e,]*\)$/\1/p' cut.err)
[[ $(tr -cd , <<< "$pinned" | wc -c) == 5 ]] || fail "expected a cost for each of 6 segments, got '$pinned'"
"$train" "${cut[@]}" "$pinned" --deterministic > pinned.json 2> pinned.err || fail "$pinned: $(tail -1 pinned.err)"
diff <(losses cut.json) <(losses pinned.json) || fail "$pinned is another run than the one that printed it"
diff <(grep -v ^measured cut.err) pinned.err || fail "$pinned cuts otherwise than the run that printed it"

# --- Four dimensions in f32, within its bound (tests/parallel/training_run.h): every loss, and the norm of the first step;
# saved and resumed on three meshes in turn, as if nothing had happened.
f32=("${small[@]}" --layers=4 --batch=8 --eval_every=0)
near_f32() {
  paste -d' ' "$1" "$2" | awk 'function off(a, b) { d = a - b; return (d < 0 ? -d : d) / a }
                               { if (off($2, $5) > 1e-5 || ($1 == 1 && off($3, $6) > 1e-6) || $1 != $4) bad = 1 }
                               END { exit bad || NR != 8 }'
}
"$train" "${f32[@]}" --mesh= --steps=8 > whole32.json 2> /dev/null || fail "one rank in f32"
"$train" "${f32[@]}" --mesh=pp=2,dp=2,tp=2 --plan=fsdp --sequence_parallel --schedule=zb_h1 --microbatches=4 --steps=8 \
  --check_replicas=2 > spread32.json 2> spread32.err || fail "pp=2,dp=2,tp=2: $(tail -1 spread32.err)"
near_f32 <(losses whole32.json) <(losses spread32.json) || fail "pp=2,dp=2,tp=2 differs from one rank in f32"
"$train" "${f32[@]}" --mesh=pp=2,tp=2 --microbatches=2 --steps=3 --save=pp_tp.safetensors > a32.json 2> a32.err ||
  fail "pp=2,tp=2: $(tail -1 a32.err)"
"$train" --resume=pp_tp.safetensors --mesh=dp=4 --steps=6 --eval_every=0 --log_format=json --sample=0 --save=dp.safetensors \
  > b32.json 2> a32.err || fail "pp=2,tp=2 resumed on dp=4: $(tail -1 a32.err)"
"$train" --resume=dp.safetensors --mesh= --steps=8 --eval_every=0 --log_format=json --sample=0 > c32.json 2> a32.err ||
  fail "dp=4 resumed on one rank: $(tail -1 a32.err)"
near_f32 <(losses whole32.json) <(losses a32.json; losses b32.json; losses c32.json) ||
  fail "pp=2,tp=2, then dp=4, then one rank differ from one rank in f32"

# --- A loss that is not finite: its line is the last, and the error says of that step what was so first.
for parts in 1 2; do
  "$train" "${small[@]}" --mesh=dp=2 --microbatches=$parts --lr=9e8 --weight_decay=9e8 --warmup=0 --steps=20 --eval_every=0 \
    > nan.json 2> nan.err && fail "a loss that is not finite is no error"
  [[ $(tail -1 nan.json) == *'"loss":null'* ]] || fail "expected a loss that is not finite: $(tail -1 nan.json)"
  [[ $(grep -c '"loss":null' nan.json) == 1 ]] || fail "expected nothing after it: $(cat nan.json)"
  step=$(tail -1 nan.json | sed 's/^{"step":\([0-9]*\),.*/\1/')
  grep -q "step $step: .* is not finite" nan.err || fail "expected the cause in step $step: $(tail -1 nan.err)"
done

# --- A path that no checkpoint can keep is refused before the first step, where something is saved.
latin=$'caf\xe9.txt'
cp text.txt "$latin"
for save in --save=latin.safetensors --checkpoint_dir=latin; do
  "$train" "${small[@]}" "--data=$latin" --steps=1 --eval_every=0 $save > latin.json 2> latin.err && fail "$save: a path that is not UTF-8 is taken"
  grep -q '^error: --data=.*caf\\xe9.txt: expected UTF-8' latin.err || fail "$save of a path that is not UTF-8: $(tail -1 latin.err)"
  [[ ! -s latin.json ]] || fail "$save of a path that is not UTF-8 trains: $(cat latin.json)"
done
"$train" "${small[@]}" "--data=$latin" --steps=1 --eval_every=0 > latin.json 2> latin.err || fail "a path that is not UTF-8: $(tail -1 latin.err)"

# --- Recomputation changes no bit, under any plan; with stages too.
"$train" "${small[@]}" --mesh=dp=2 --plan=fsdp --steps=3 --eval_every=0 > kept.json 2> /dev/null
"$train" "${small[@]}" --mesh=pp=2,dp=2 --microbatches=2 --schedule=zb_h1 --steps=3 --eval_every=0 > staged.json 2> /dev/null
for how in full selective; do
  "$train" "${small[@]}" --mesh=dp=2 --plan=fsdp --steps=3 --eval_every=0 --recompute=$how > again.json 2> again.err ||
    fail "--recompute=$how: $(tail -1 again.err)"
  diff <(losses kept.json) <(losses again.json) || fail "--recompute=$how changes a loss"
  "$train" "${small[@]}" --mesh=pp=2,dp=2 --microbatches=2 --schedule=zb_h1 --steps=3 --eval_every=0 --recompute=$how \
    > again.json 2> again.err || fail "--recompute=$how with stages: $(tail -1 again.err)"
  diff <(losses staged.json) <(losses again.json) || fail "--recompute=$how changes a loss of stages"
done

# --- Offload changes no bit, under any plan, with stages and resumed; the file lies where it is said.
for what in state parameters,activations; do
  "$train" "${small[@]}" --mesh=dp=2 --plan=fsdp --steps=3 --eval_every=0 --offload=$what --offload_folder=. > again.json 2> again.err ||
    fail "--offload=$what: $(tail -1 again.err)"
  diff <(losses kept.json) <(losses again.json) || fail "--offload=$what changes a loss"
  "$train" "${small[@]}" --mesh=pp=2,dp=2 --microbatches=2 --schedule=zb_h1 --steps=3 --eval_every=0 --offload=$what \
    > again.json 2> again.err || fail "--offload=$what with stages: $(tail -1 again.err)"
  diff <(losses staged.json) <(losses again.json) || fail "--offload=$what changes a loss of stages"
done
"$train" "${small[@]}" --steps=3 --eval_every=0 --offload=parameters --save=there.safetensors > there.json 2> again.err
"$train" --resume=there.safetensors --steps=5 --eval_every=0 --log_format=json --sample=0 > more.json 2> again.err ||
  fail "offloaded and resumed: $(tail -1 again.err)"
diff <(losses straight.json | head -5) <(cat <(losses there.json) <(losses more.json)) || fail "offloaded and resumed differs"
"$train" "${small[@]}" --steps=1 --offload=state --offload_folder=/nowhere > none.json 2> again.err && fail "a folder that is not there"
grep -q "memory in a file: folder '/nowhere': No such file" again.err || fail "offload folder: $(tail -1 again.err)"
mkdir -p stands/offloaded
BUILD_WORKING_DIRECTORY=$PWD/stands "$train" "${small[@]}" "--data=$PWD/text.txt" --steps=1 --eval_every=0 --offload=state \
  --offload_folder=offloaded > none.json 2> again.err || fail "an offload folder where the user stands: $(tail -1 again.err)"
"$train" "${small[@]}" --steps=1 --offload=disk > none.json 2> again.err && fail "--offload=disk is taken"
grep -q -- "--offload=disk: expected" again.err || fail "--offload=disk: $(tail -1 again.err)"
"$train" "${small[@]}" --steps=1 --eval_every=0 --deterministic > none.json 2> again.err || fail "--deterministic: $(tail -1 again.err)"

# --- Compressed gradients: residuals are saved, a resumed run is the run that was not stopped; also on another mesh, and by a plan.
for how in int8 "topk(0.05, momentum=0.5)" "powersgd(2)"; do
  few=("${small[@]}" "--mesh=dp=2,tp=2" --eval_every=0 "--communication=$how")
  "$train" "${few[@]}" --steps=6 > whole.json 2> few.err || fail "--communication=$how: $(tail -1 few.err)"
  "$train" "${few[@]}" --steps=6 --bucket_mb=0.01 --overlap=false > again.json 2> few.err || fail "--communication=$how: $(tail -1 few.err)"
  diff <(losses whole.json) <(losses again.json) || fail "--communication=$how: a loss depends on the schedule"
  "$train" "${few[@]}" --steps=3 --save=few.safetensors > few.json 2> few.err || fail "--communication=$how: $(tail -1 few.err)"
  more=(--resume=few.safetensors --steps=6 --eval_every=0 --log_format=json --sample=0 "--communication=$how")
  "$train" "${more[@]}" --mesh=dp=2,tp=2 > more.json 2> few.err || fail "--communication=$how resumed: $(tail -1 few.err)"
  diff <(losses whole.json) <(cat <(losses few.json) <(losses more.json)) || fail "--communication=$how resumed differs"
  "$train" "${more[@]}" --mesh=dp=4 > more.json 2> few.err || fail "--communication=$how resumed on dp=4: $(tail -1 few.err)"
  [[ $(losses more.json | wc -l) == 3 ]] || fail "--communication=$how resumed on dp=4: $(cat more.json)"
done
echo '{"entries": [{"path": "", "style": "DataParallel", "axis": "dp"}, {"path": "", "style": "Communication", "method": "int8"}]}' > few_plan.json
"$train" "${small[@]}" --mesh=dp=2 --eval_every=0 --steps=3 --communication=int8 > whole.json 2> few.err || fail "int8: $(tail -1 few.err)"
"$train" "${small[@]}" --mesh=dp=2 --eval_every=0 --steps=3 --plan=few_plan.json > again.json 2> few.err || fail "a plan of int8: $(tail -1 few.err)"
diff <(losses whole.json) <(losses again.json) || fail "a plan of int8 is not --communication=int8"
# The same where gradients rest split, in stages, and in f16. Before its start_step powersgd sums exactly, and changes no loss.
for where in "--mesh=dp=2 --plan=zero2" "--mesh=dp=2 --plan=fsdp" "--mesh=replica=2,shard=2 --plan=hsdp" \
  "--mesh=pp=2,dp=2 --plan=fsdp --microbatches=2" "--mesh=dp=2 --plan=fsdp --dtype=f16"; do
  read -ra place <<< "$where"
  split=("${small[@]}" "${place[@]}" --eval_every=0)
  "$train" "${split[@]}" --steps=4 > none.json 2> few.err || fail "$where: $(tail -1 few.err)"
  "$train" "${split[@]}" --steps=4 "--communication=powersgd(2, start_step=9)" > exact.json 2> few.err || fail "powersgd with $where: $(tail -1 few.err)"
  diff <(losses none.json) <(losses exact.json) || fail "powersgd before its start changes a loss with $where"
  for how in int8 "topk(0.05)"; do
    "$train" "${split[@]}" --steps=6 "--communication=$how" > whole.json 2> few.err || fail "$how with $where: $(tail -1 few.err)"
    "$train" "${split[@]}" --steps=3 "--communication=$how" --save=split.safetensors > few.json 2> few.err || fail "$how with $where: $(tail -1 few.err)"
    "$train" --resume=split.safetensors --steps=6 --eval_every=0 --log_format=json --sample=0 "${place[@]}" "--communication=$how" > more.json 2> few.err ||
      fail "$how with $where resumed: $(tail -1 few.err)"
    diff <(losses whole.json) <(cat <(losses few.json) <(losses more.json)) || fail "$how with $where resumed differs"
  done
  diff <(losses none.json) <(losses whole.json | head -4) > /dev/null && fail "topk changes no loss with $where"
done

# --- f16 scales the loss; the scale is saved, and a resumed run is the run that was not stopped.
half=("${small[@]}" --dtype=f16 --mesh=dp=2 --eval_every=0)
"$train" "${half[@]}" --steps=6 > whole.json 2> half.err || fail "f16: $(tail -1 half.err)"
grep -q '"loss_scale":65536.0,"updated":true' whole.json || fail "f16 without a loss scale: $(tail -1 whole.json)"
"$train" "${half[@]}" --steps=3 --loss_scale=1e9 --save=half.safetensors > half.json 2> half.err || fail "f16: $(tail -1 half.err)"
grep -q '"updated":false' half.json || fail "a scale of 1e9 does not overflow: $(cat half.json)"
scale=$(tail -1 half.json | sed 's/.*"loss_scale":\([0-9.]*\),.*/\1/')
"$train" --resume=half.safetensors --steps=4 --eval_every=0 --log_format=json --sample=0 --mesh=dp=4 > more.json 2> half.err ||
  fail "f16 resumed: $(tail -1 half.err)"
awk -v was="$scale" -v line="$(tail -1 more.json)" 'BEGIN { match(line, /"loss_scale":[0-9.]*/);
  now = substr(line, RSTART + 13, RLENGTH - 13) + 0; exit !(now == was || now == was / 2) }' || fail "the scale $scale is not resumed: $(cat more.json)"
"$train" "${half[@]}" --mesh=pp=2 --microbatches=2 --steps=2 > staged.json 2> half.err || fail "f16 with stages: $(tail -1 half.err)"
grep -q '"loss_scale":65536.0,"updated":true' staged.json || fail "f16 with stages: $(cat staged.json)"
grep -q '"loss_scale"' again.json && fail "a plan of int8 has a loss scale"

# --- Columns of a plan from a file: what is computed again or lies elsewhere changes no bit, f16 of some modules is scaled.
columns() {
  local entries=$1
  echo "{\"entries\": [{\"path\": \"blocks.*\", \"style\": \"FullyShard\", \"axis\": \"dp\"}, {\"path\": \"\", \"style\": \"FullyShard\", \"axis\": \"dp\"}$entries]}" > columns.json
  "$train" "${small[@]}" --mesh=dp=2 --eval_every=0 --steps=3 --plan=columns.json > again.json 2> columns.err ||
    fail "a plan with $entries: $(tail -1 columns.err)"
}
columns ''
losses again.json > without
columns ', {"path": "blocks.*", "style": "Recompute", "keep": "contract"}, {"path": "", "style": "Offload", "state": true, "parameters": true}'
diff without <(losses again.json) || fail "recomputation and offload by a plan change a loss"
columns ', {"path": "blocks.*.mlp", "style": "Precision", "param": "f16", "output": "f32"}'
grep -q '"loss_scale":65536.0,"updated":true' again.json || fail "f16 by a plan is not scaled: $(tail -1 again.json)"
diff without <(losses again.json) > /dev/null && fail "f16 by a plan changes nothing"

# --- A trace is a JSON array of events.
"$train" "${small[@]}" --steps=2 --eval_every=0 --trace=trace.json > /dev/null 2>&1
grep -q '"ph":"X"' trace.json || fail "no events in the trace"

# --- Bad input: one line on stderr, exit code 1.
bad() {
  local expected=$1
  shift
  "$train" "$@" > bad.out 2> bad.err < /dev/null
  local status=$?
  [[ $status == 1 ]] || fail "$*: exit code $status, expected 1"
  [[ $(grep -c '' bad.err) == 1 ]] || fail "$*: expected one line on stderr, got: $(cat bad.err)"
  grep -qF -- "$expected" bad.err || fail "$*: expected '$expected' in: $(cat bad.err)"
}
bad "did you mean --mesh?" --mehs=dp=2
bad "no such file" --data=missing.txt
bad "does not divide" "${small[@]}" --mesh=tp=3
bad "needs an axis" "${small[@]}" --mesh=dp=2 --sequence_parallel
bad "expected one of f32, f64, bf16, f16" "${small[@]}" --dtype=int4
bad "expected one of auto, none, full, selective" "${small[@]}" --recompute=some
bad "unknown method 'top': expected one of bf16, f16, int8, none" "${small[@]}" --communication=top
bad "argument 'fraction': expected a number above 0, at most 1, got '2'" "${small[@]}" "--communication=topk(2)"
bad "a plan of your own says so itself" "${small[@]}" --mesh=dp=2 --plan=few_plan.json --communication=int8
bad "it is of --dtype=f16" "${small[@]}" --loss_scale=8
bad "expected a number above 0" "${small[@]}" --dtype=f16 --loss_scale=-1
bad "has no axis pp" "${small[@]}" --schedule=zbv
bad "costs: expected 4 numbers, one for each segment of the model, got 2" "${small[@]}" --mesh=pp=2 --microbatches=2 --segment_costs=1,2
bad "times cut the model otherwise in every run" "${small[@]}" --mesh=pp=2 --microbatches=2 --segment_costs=measured --deterministic
bad "within the step (OPT)" "${small[@]}" --mesh=pp=2 --microbatches=2 --schedule=pipedream
for flag in save trace; do
  bad "--$flag=no/such/folder/file: cannot write to the folder" "${small[@]}" --$flag=no/such/folder/file
  bad "--$flag=no_name/: cannot write to the folder" "${small[@]}" --$flag=no_name/
  bad "--$flag=stands/: expected a file, got a folder" "${small[@]}" --$flag=stands/
  bad "--$flag=stands: expected a file, got a folder" "${small[@]}" --$flag=stands
done
mkfifo pipe
bad "--save=pipe: expected a file, got a device, a pipe or a socket" "${small[@]}" --save=pipe
[[ -p pipe ]] || fail "--save has put something in a pipe's place"
bad "not a whole safetensors file" --resume=text.txt
bad "was made with" --resume=full.safetensors --layers=3
bad "trained on another text" --resume=full.safetensors --data=full.json
echo '{"entries": [{"path": "blocks.*.mpl", "style": "ColumnParallel", "axis": "tp"}]}' > plan.json
bad "no module or parameter matches" "${small[@]}" --plan=plan.json
head -c 100000 full.safetensors > cut.safetensors
bad "not a whole safetensors file" --resume=cut.safetensors
train=$sample bad "--model: expected a file that train_gpt --save wrote, got none" --prompt=a
train=$sample bad "--prompt: expected at least one character, got none" --model=full.safetensors --prompt=
"$train" --help > help.txt || fail "--help does not exit 0"
grep -q -- "--sequence_parallel" help.txt || fail "--help lacks a flag"

[[ $failures == 0 ]] && echo "all passed"
exit $((failures > 0))

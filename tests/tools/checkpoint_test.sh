#!/bin/bash
# //tools:checkpoint, end to end: steps listed, verified and shown, damage found and named, one file out of a folder and back.
# Arguments: the tool, train_gpt, a folder that PyTorch wrote.
set -u
tool=$PWD/$1
train=$PWD/$2
dcp=$PWD/$(dirname "$3")
dir=$(mktemp -d "${TEST_TMPDIR:-/tmp}/checkpoint.XXXXXX")
cd "$dir" || exit 1
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}
# expect CODE TEXT WORDS...: the tool's exit code, and a text that it prints.
expect() {
  local code=$1 text=$2
  shift 2
  "$tool" "$@" > out 2> err
  local got=$?
  [[ $got == "$code" ]] || fail "$*: exit code $got, expected $code: $(head -3 out) $(head -3 err)"
  [[ -z $text ]] || cat out err | grep -qF -- "$text" || fail "$*: expected '$text', got: $(head -5 out) $(head -3 err)"
}

losses() { grep -o '"step":[0-9]*\|"loss":[^,}]*' "$@"; }

for i in $(seq 1 300); do echo "line $i of the tale, $((i * i % 97)) and so on"; done > text.txt
small=(--data=text.txt --layers=1 --heads=2 --dim=16 --context=16 --batch=4 --log_format=json --sample=0 --eval_every=0)
"$train" "${small[@]}" --mesh=dp=2,tp=2 --plan=fsdp --steps=4 --checkpoint_dir=a --save_every=2 > run_a.json 2> err ||
  fail "train: $(tail -1 err)"
"$train" "${small[@]}" --mesh=dp=3 --batch=6 --plan=fsdp --steps=4 --seed=2 --checkpoint_dir=b > run.json 2> err || fail "train: $(tail -1 err)"

# --- ls, verify, show
expect 0 "step-000000004    yes          4" ls a
[[ $(grep -c '^step-' out) == 2 ]] || fail "ls: $(cat out)"
expect 0 '{"step":2,"whole":true,"ranks":4,' ls a --log_format=json
expect 0 "step-000000002    yes          4" ls a@2
[[ $(grep -c '^step-' out) == 1 ]] || fail "ls of one step: $(cat out)"
expect 1 "step-000000003    no" ls a@3
expect 0 "step-000000002: ok, " verify a
expect 0 '{"step":4,"ok":true,"bytes":' verify a@4 --log_format=json
expect 0 "optimizer.wte.weight.m" show a
grep -qF "f32[256, 16]" out && grep -qF "step 4, 4 ranks, parts model, optimizer, loss_scale, communication, run" out || fail "show: $(head -5 out)"
expect 0 '"layout":' show a@2 --log_format=json

# --- The configuration that is saved with a step makes the same run again.
expect 0 '"weft.config":' show a@4 --log_format=json
python3 -c 'import json; print(json.load(open("out"))["texts"]["weft.config"])' > config.json || fail "no configuration: $(head -c 300 out)"
"$train" --config=config.json --checkpoint_dir=again > again.json 2> err || fail "from its configuration: $(tail -1 err)"
[[ $(wc -l < run_a.json) -ge 4 ]] || fail "no losses: $(cat run_a.json)"
cmp <(losses run_a.json) <(losses again.json) || fail "from its configuration: $(losses run_a.json again.json)"
expect 0 "" diff a again
[[ ! -s out ]] || fail "from its configuration: $(cat out)"

# --- One file out of a folder: --resume takes it, and it is the same as --save's; a step of another folder out of it.
expect 0 "" export a --to=a.safetensors
"$train" --checkpoint_dir=a --save=saved.safetensors --log_format=json --sample=0 > /dev/null 2> err || fail "save: $(tail -1 err)"
expect 0 "" diff a.safetensors saved.safetensors
[[ ! -s out ]] || fail "diff of what is the same: $(cat out)"
"$train" --resume=a.safetensors --steps=5 "--data=text.txt" --log_format=json --sample=0 --eval_every=0 > one.json 2> err || fail "resume: $(tail -1 err)"
expect 0 "" import a.safetensors --to=c@4
expect 0 "" diff a c@4
"$train" --checkpoint_dir=c --mesh=dp=2,tp=2 --steps=5 --log_format=json --sample=0 --eval_every=0 > two.json 2> err || fail "imported: $(tail -1 err)"
cmp <(cut -d, -f1-3 one.json) <(cut -d, -f1-3 two.json) || fail "imported and resumed differ"
expect 0 "" export a@2 --to=weights.safetensors '--only=!optimizer.'
expect 0 "wpe" show weights.safetensors
grep -q optimizer out && ! grep -q "optimizer" <(grep "weft.flags" out) && fail "--only: $(cat out)"
expect 1 "only in the first" diff a weights.safetensors

# --- diff
expect 1 "elements differ, by " diff a b
expect 1 '{"name":"wpe","what":"' diff a b --log_format=json

# --- A folder of PyTorch's.
expect 0 "model.columns" show "$dcp"
grep -q "step = 42" out && grep -q "'object' is an object of Python's" err || fail "show of PyTorch's: $(cat out err)"
expect 0 "" import "$dcp" --to=p@42
expect 0 "ok" verify p
expect 0 "" diff p "$dcp"
[[ ! -s out ]] || fail "diff of what is the same: $(cat out)"

# --- A dtype that Weft lacks: the rest of the file is there.
python3 - << 'END'
import json
import struct

header = json.dumps({'q': {'dtype': 'F8_E4M3', 'shape': [3], 'data_offsets': [0, 3]},
                     'w': {'dtype': 'F32', 'shape': [1], 'data_offsets': [3, 7]}}).encode()
with open('lacks.safetensors', 'wb') as file:
    file.write(struct.pack('<Q', len(header)) + header + bytes(7))
END
expect 0 "'q' has the dtype F8_E4M3, which Weft lacks: it is left out" show lacks.safetensors
grep -q "w .*f32\[1\]" out || fail "show of the rest: $(cat out)"

# --- Damage is found and named.
cp -r a d
printf 'x' | dd of=d/step-000000004/rank-00002.safetensors bs=1 seek=$(($(stat -c %s d/step-000000004/rank-00002.safetensors) - 5)) conv=notrunc 2> /dev/null
expect 0 "step-000000004    yes" ls d
expect 1 "d/step-000000004/rank-00002.safetensors': the elements of tensor '" verify d
expect 0 "step-000000002: ok" verify d@2
expect 1 "rank-00002.safetensors" export d --to=broken.safetensors
[[ ! -e broken.safetensors ]] || fail "half an export is left"
truncate -s 100 d/step-000000004/rank-00001.safetensors
expect 1 "step-000000004    no" ls d
expect 0 "step 2, 4 ranks" show d

# --- A step that stays for elements of a later one: the loss scale, which overflows have made smaller step by step until parameters
# changed, lies in a step that refers to ones before it for the parameters, and these are gone.
"$train" "${small[@]}" --dtype=f16 --loss_scale=1e9 --steps=40 --checkpoint_dir=i --save_every=1 --save_incremental --keep=1 > /dev/null 2> err ||
  fail "train incrementally: $(tail -1 err)"
expect 0 "stays for elements of step 40" ls i
part=$(awk '$2 == "part" { print $1 }' out)
number=$((10#${part#step-}))
expect 0 "stays for elements of step 40" ls "i@$number"
expect 0 "$part: stays for elements of step 40, which are ok" verify i
expect 0 "$part: stays for elements of step 40, which are ok" verify "i@$number"
[[ $(wc -l < out) == 1 ]] || fail "verify of one step: $(cat out)"
expect 0 '"referred_to_by":[40]' verify "i@$number" --log_format=json
# Its own elements count all the same.
printf 'x' | dd of="i/$part/rank-00000.safetensors" bs=1 seek=$(($(stat -c %s "i/$part/rank-00000.safetensors") - 1)) conv=notrunc 2> /dev/null
expect 1 "$part: BROKEN" verify "i@$number"

# --- Bad input: one line.
expect 1 "expected one of ls, verify, show, export, import, diff" list a
expect 1 "expected one of ls" --log_format=json
expect 1 "expected 2 paths, got 1" diff a
expect 1 "cannot list" ls none
expect 1 "has no step that is whole" show none
mkdir empty
expect 1 "'empty': expected a folder with steps of a checkpoint, found none" verify empty
expect 1 "expected --to=FILE, got none" export a
expect 1 "expected FOLDER@STEP" import a.safetensors --to=c
expect 1 "checkpoint import: --only is for export" import a.safetensors --to=g@4 '--only=!optimizer.'
[[ ! -e g ]] || fail "import --only has written"
expect 1 "checkpoint diff: --only is for export" diff a b --only=blocks.
expect 1 "checkpoint show: --to is for export and import" show a --to=x
expect 1 "is there already, and whole" import a.safetensors --to=c@4
expect 1 "did you mean --log_format" ls a --log_fromat=json
expect 0 "FOLDER@STEP" --help

if [[ $failures -gt 0 ]]; then
  echo "$failures failed" >&2
  exit 1
fi
rm -rf "$dir"

#!/usr/bin/env bash
# What gpu_check's `run` makes of programs that pass, fail, crash or hang; the programs here are stand-ins.
set -euo pipefail
run=$PWD/$1
check=$PWD/$2
folder=$(mktemp -d "$TEST_TMPDIR/gpu_check.XXXXXX")

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
expect() { [[ $2 == *"$1"* ]] || fail "expected '$1' in: $2"; }

# stand_in NAME TEXT STATUS
stand_in() {
  mkdir -p "$folder/lib"
  printf '#!/bin/bash\ncat <<"TEXT"\n%s\nTEXT\nexit %d\n' "$2" "$3" >"$folder/lib/$1"
  chmod +x "$folder/lib/$1"
  ln -sf "lib/$1" "$folder/$1"
}

cp "$run" "$folder/run"
stand_in good_test_on_gpu '[ RUN      ] A.b
[  PASSED  ] 12 tests.' 0
stand_in check_rules '{"ops":182,"wrong":0}' 0
stand_in train_gpt 'step 200: loss 1.5' 0
stand_in kernels 'kernels/softmax 1000 GB/s' 0
stand_in gpt2_gpu 'gpt2_gpu 400000 tokens/s' 0
mkdir "$folder/bin"
printf '#!/bin/bash\nexit 1\n' >"$folder/bin/python3"
chmod +x "$folder/bin/python3"
export PATH=$folder/bin:$PATH

said=$("$folder/run" 2>&1) || fail "all pass, but: $said"
expect "12 passed     0 failed" "$said"
expect "gpt2_gpu 400000 tokens/s" "$said"
[[ $said == *$'\n17 passed, 0 failed' ]] || fail "totals: $said"
# Of what runs as several processes, each does its part; one that fails has failed them all.
printf '#!/bin/bash\necho "part ${*: -1}"\n' >"$folder/lib/check_rules"
printf '#!/bin/bash\n((GTEST_SHARD_INDEX != 2)) || { echo "a.cc:9: Failure"; exit 1; }\n' >"$folder/lib/conformance_on_one_gpu_test"
chmod +x "$folder/lib/conformance_on_one_gpu_test"
ln -sf lib/conformance_on_one_gpu_test "$folder/conformance_on_one_gpu_test"
said=$("$folder/run" --only=rules 2>&1) || fail "rules: $said"
expect "part --shard=1/" "$said"
[[ $said == *$'\n1 passed, 0 failed' ]] || fail "rules: $said"
said=$("$folder/run" --only=nccl 2>&1) && fail "a part has failed: $said"
expect "a.cc:9: Failure" "$said"
[[ $said == *$'\n0 passed, 1 failed' ]] || fail "nccl: $said"

said=$("$folder/run" --only=tests,kernels --log_format=json)
expect '{"name":"good_test_on_gpu","passed":12,"failed":0,"seconds":' "$said"
[[ $said != *gpt2* ]] || fail "--only: $said"

# Blanks separate as commas do: what is named after one runs, too.
for several in 'rules, training' 'rules training'; do
  said=$("$folder/run" "--only=$several" 2>&1) || fail "--only='$several': $said"
  [[ $said == *$'\n2 passed, 0 failed' ]] || fail "--only='$several' left something out: $said"
done

stand_in bad_test_on_gpu 'a.cc:3: Failure
[  PASSED  ] 3 tests.
[  FAILED  ] 2 tests, listed below:' 1
stand_in crashed_test_on_gpu 'terminate called' 134
stand_in empty_test_on_gpu '[  PASSED  ] 0 tests.' 0
stand_in kernels 'no CUDA device' 1
said=$("$folder/run" --only=tests,kernels 2>&1) && fail "failures are not told: $said"
expect "a.cc:3: Failure" "$said"
expect "3 passed     2 failed" "$said"
[[ $said == *$'\n15 passed, 5 failed' ]] || fail "totals of failures: $said"

rm "$folder"/lib/*_on_gpu
said=$("$folder/run" --only=tests 2>&1) && fail "no tests, and no error"
expect "0 passed, 1 failed" "$said"
said=$("$folder/run" --only=test 2>&1) && fail "--only=test is taken"
expect "error: --only=test: 'test' is none of tests, rules, training, kernels, gpt2, nccl" "$said"
for none in '' ' ' ','; do
  said=$("$folder/run" --only="$none" 2>&1) && fail "--only=$none runs nothing, and all is well: $said"
  expect "error: --only=$none: expected some of tests, rules, training, kernels, gpt2, nccl" "$said"
done
said=$("$folder/run" --json 2>&1) && fail "--json is taken"
expect "expected --log_format=text|json or --only=PARTS, got '--json'" "$said"
expect "run --log_format=json" "$("$folder/run" --help)"

said=$("$check" 2>&1) && fail "gpu_check takes no folder"
expect "error: expected the folder to make, got ''" "$said"
said=$("$check" "$folder" 2>&1) && fail "gpu_check takes a folder that exists"
expect "$folder exists already" "$said"
expect "usage: tools/gpu_check.sh FOLDER" "$("$check" --help)"

#!/usr/bin/env bash
# Checks this machine's GPU with the programs beside it, which tools/gpu_check.sh has put there: every test that needs a GPU,
# the rules of all ops, a GPT trained on a text, kernels beside the memory's speed, GPT-2 124M in tokens/s and MFU, and PyTorch
# on the same if python3 has it. Ends within 8 minutes: each part has a time limit, and one that passes it has failed.
#
#   run                       a table
#   run --log_format=json     one object per line: {"name":...,"passed":N,"failed":N,"seconds":x} of tests and programs, and the
#                             figures as benchmarks print them: {"name":...,"value":x,"unit":...,"limit":x,"ratio":x,...}
#   run --only=tests          tests, rules, training, kernels or gpt2, separated by commas or blanks; nccl, which is left out otherwise:
#                             the contract of communicators over NCCL, by ranks that share the GPU
#
# The last line of the table is "N passed, N failed". Exits with 1 if anything failed; a figure below its target has not.
set -uo pipefail

format=text
only=tests,rules,training,kernels,gpt2
for argument in "$@"; do
  case $argument in
    --help | -h)
      sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    --log_format=text | --log_format=json) format=${argument#*=} ;;
    --only=*) only=${argument#*=} ;;
    *)
      echo "error: expected --log_format=text|json or --only=PARTS, got '$argument'" >&2
      exit 1
      ;;
  esac
done
for part in ${only//,/ }; do
  case $part in
    tests | rules | training | kernels | gpt2 | nccl) ;;
    *)
      echo "error: --only=$only: '$part' is none of tests, rules, training, kernels, gpt2, nccl" >&2
      exit 1
      ;;
  esac
done
if [[ ! $only =~ [^,[:space:]] ]]; then
  echo "error: --only=$only: expected some of tests, rules, training, kernels, gpt2, nccl" >&2
  exit 1
fi
only=${only//[[:space:]]/,}  # as the loop above has read it
wants() { [[ ,$only, == *,$1,* ]]; }

cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" || exit 1
work=$(mktemp -d)
trap 'jobs -p | xargs -r kill 2>/dev/null; rm -rf "$work"' EXIT
all_passed=0
all_failed=0

# limit SECONDS: so many, or what is left of all the time if that is less.
limit() {
  local left=$((470 - SECONDS))
  ((left > 1)) || left=1
  echo $(($1 < left ? $1 : left))
}

# report NAME PASSED FAILED SECONDS
report() {
  all_passed=$((all_passed + $2))
  all_failed=$((all_failed + $3))
  if [[ $format == json ]]; then
    printf '{"name":"%s","passed":%d,"failed":%d,"seconds":%d}\n' "$@"
  else
    printf '%-44s %5d passed %5d failed %5d s\n' "$@"
  fi
}

# program NAME LIMIT ARGUMENT...: one that counts as one, whose output is shown.
program() {
  local name=$1 seconds=$2 begin=$SECONDS
  shift 2
  if timeout "$(limit "$seconds")" "./$name" "$@" >"$work/out" 2>"$work/err"; then
    cat "$work/out"
    report "$name" 1 0 $((SECONDS - begin))
  else
    cat "$work/out"
    tail -n 20 "$work/err" >&2
    report "$name" 0 1 $((SECONDS - begin))
  fi
}

run_tests() {
  local test name begin status passed failed
  for test in lib/*_on_gpu; do
    [[ -e $test ]] || { echo "error: no test lies in $PWD/lib" >&2; report tests 0 1 0; return; }
    name=$(basename "$test")
    begin=$SECONDS
    timeout "$(limit 100)" "./$name" >"$work/out" 2>&1
    status=$?
    # GoogleTest's last lines: "[  PASSED  ] 12 tests." and "[  FAILED  ] 1 test, listed below:"
    passed=$(awk '/^\[  PASSED  \]/ { n = $4 } END { print n + 0 }' "$work/out")
    failed=$(awk '/^\[  FAILED  \] [0-9]+ tests?, listed below/ { n = $4 } END { print n + 0 }' "$work/out")
    # A program that ends otherwise, is stopped, or never began, has failed too; so has one that tests nothing.
    if ((status != 0 && failed == 0)) || ((passed + failed == 0)); then failed=$((failed + 1)); fi
    if ((failed > 0)); then grep -v '^\[ *\(OK\|RUN\|---*\|===*\) *\]' "$work/out" | head -n 60 >&2; fi
    report "$name" "$passed" "$failed" $((SECONDS - begin))
  done
}

# at_once NAME N LIMIT PROGRAM...: N processes at once; the I-th gets I/N for @SHARD@. They count as one.
at_once() {
  local name=$1 count=$2 seconds=$3 begin=$SECONDS i pids=() failed=0
  shift 3
  seconds=$(limit "$seconds")
  for ((i = 1; i <= count; ++i)); do
    env GTEST_TOTAL_SHARDS="$count" GTEST_SHARD_INDEX=$((i - 1)) timeout "$seconds" "${@//@SHARD@/$i/$count}" \
      >"$work/out.$i" 2>"$work/err.$i" &
    pids+=($!)
  done
  for ((i = 1; i <= count; ++i)); do
    if wait "${pids[i - 1]}"; then
      tail -n 1 "$work/out.$i"
    else
      failed=1
      grep -v '^\[ *\(OK\|RUN\|---*\|===*\) *\]' "$work/out.$i" | head -n 40
      tail -n 20 "$work/err.$i" >&2
    fi
  done
  report "$name" $((1 - failed)) "$failed" $((SECONDS - begin))
}

# One process would take some six minutes by its own estimate, most of them on launches. Processes take turns on a GPU, so these are few.
run_rules() {
  at_once check_rules 4 350 ./check_rules --device=cuda --log_format="$format" --shard=@SHARD@
}

run_training() {
  # A text of its own: the machine may have none.
  seq 1 200000 >"$work/text"
  program train_gpt 60 --device=cuda --mesh= --data="$work/text" --steps=200 --log_every=100 --eval_every=0 --sample=0 \
    --log_format="$format"
}

run_gpt2() {
  local peer=() rate
  if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    if rate=$(timeout "$(limit 150)" python3 ./pytorch_gpt2_gpu.py 2>"$work/err"); then
      peer=(--peer="PyTorch=$rate")
      tail -n 1 "$work/err" >&2
    else
      echo "PyTorch's figure cannot be had: $(tail -n 1 "$work/err")" >&2
    fi
  fi
  program gpt2_gpu 60 --log_format="$format" "${peer[@]}"
  program gpt2_gpu 60 --log_format="$format" --profile --steps=3 --warmup=2
}

if [[ $format == text ]]; then
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo "nvidia-smi: none"
fi
if wants tests; then run_tests; fi
if wants training; then run_training; fi
if wants kernels; then program kernels 120 --device=cuda --log_format="$format"; fi
if wants gpt2; then run_gpt2; fi
if wants rules; then run_rules; fi
# A case has up to eight processes; with more than some 15 at once the driver refuses them memory.
if wants nccl; then at_once conformance_on_one_gpu_test 3 460 ./conformance_on_one_gpu_test; fi
if [[ $format == text ]]; then echo "$all_passed passed, $all_failed failed"; fi
((all_failed == 0))

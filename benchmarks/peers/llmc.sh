#!/usr/bin/env bash
# Measures llm.c's CPU trainer on GPT-2 124M, batch 4 x 64, f32, AdamW, two threads: the median tokens/s of its steps on
# stdout, all else on stderr.
#
#   benchmarks/peers/llmc.sh DIR        DIR: a copy of github.com/karpathy/llm.c (its train_gpt2.c and llmc/)
#
# Its flags are those of its Makefile. The weights are random, as the time does not depend on them, and so are the
# tokens. THREADS (2) and STEPS (10) may be set. Needs gcc with OpenMP, python3, and 1 GB in TMPDIR.
set -euo pipefail

source_dir=${1:?usage: benchmarks/peers/llmc.sh DIR, a copy of llm.c}
[[ -f $source_dir/train_gpt2.c ]] || { echo "there is no train_gpt2.c in '$source_dir'" >&2; exit 1; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cp -r "$source_dir/train_gpt2.c" "$source_dir/llmc" "$dir"
cd "$dir"

# The trainer stops after a fixed number of steps and validates every ten: as many steps as asked for, the first
# aside, and one batch of validation.
sed -i "s/step <= 40/step <= ${STEPS:-10}/; s/int val_num_batches = 5/int val_num_batches = 1/" train_gpt2.c
gcc -Ofast -march=native -fopenmp -DOMP train_gpt2.c -lm -o train_gpt2 >&2

python3 - <<'PYTHON'
import array, os, random

random.seed(1337)
layers, width, vocabulary, padded, context = 12, 768, 50257, 50304, 1024
normal = array.array('f', (random.gauss(0, 0.02) for _ in range(1 << 18)))
ones = array.array('f', [1.0]) * (layers * width)
# In the file's order; True for the weights of layer norms.
tensors = [(padded * width, False), (context * width, False), (layers * width, True), (layers * width, False),
           (layers * 3 * width * width, False), (layers * 3 * width, False), (layers * width * width, False),
           (layers * width, False), (layers * width, True), (layers * width, False),
           (layers * 4 * width * width, False), (layers * 4 * width, False), (layers * 4 * width * width, False),
           (layers * width, False), (width, True), (width, False)]
header = [20240326, 3, context, vocabulary, layers, 12, width, padded]
with open('gpt2_124M.bin', 'wb') as f:
    array.array('i', header + [0] * (256 - len(header))).tofile(f)
    for count, is_scale in tensors:
        block = ones if is_scale else normal
        while count > 0:
            block[:min(count, len(block))].tofile(f)
            count -= len(block)
os.makedirs('dev/data/tinyshakespeare')
for part in ('train', 'val'):
    tokens = array.array('H', (random.randrange(vocabulary) for _ in range(1 << 14)))
    with open(f'dev/data/tinyshakespeare/tiny_shakespeare_{part}.bin', 'wb') as f:
        array.array('i', [20240520, 1, len(tokens)] + [0] * 253).tofile(f)
        tokens.tofile(f)
PYTHON

OMP_NUM_THREADS=${THREADS:-2} ./train_gpt2 | tee /dev/stderr |
  sed -n 's/^step [1-9][0-9]*: .*(took \([0-9.]*\) ms)$/\1/p' | sort -n |
  awk '{ ms[NR] = $1 } END { if (NR == 0) exit 1; printf "%.1f\n", 4 * 64 * 1000 / ms[int((NR + 1) / 2)] }'

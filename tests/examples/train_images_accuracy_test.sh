#!/bin/bash
# What README.md promises of the default runs of train_resnet and train_vit on Fashion-MNIST: an accuracy above a floor, which is
# above that of the best linear classifier (benchmarks/peers/linear_images.py), and within half a percent of each other under
# every plan of its table. Takes the images that setup.sh fetches. Arguments: the two programs, the README.
set -u
programs=("$PWD/$1" "$PWD/$2")
readme=$PWD/$3
floors=(0.88 0.86)
spread=0.005
dir=$(mktemp -d "${TEST_TMPDIR:-/tmp}/train_images_accuracy.XXXXXX")
cd "$dir" || exit 1
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

holds() { awk "BEGIN { exit !($1) }"; }

linear=$(sed -n 's/^The best linear classifier that we found has \(0\.[0-9]*\) .*/\1/p' "$readme")
holds "${linear:-1} < 0.86" || fail "README.md: expected a linear classifier below the floors, found '$linear'"
for floor in "${floors[@]}"; do
  grep -q -- "above $floor for" "$readme" || fail "README.md does not promise the floor $floor"
done

for i in 0 1; do
  name=$(basename "${programs[i]}")
  accuracies=()
  for flags in "--mesh=dp=2" "--mesh=dp=2 --plan=fsdp" "--mesh=tp=2"; do
    # shellcheck disable=SC2086  # flags
    "${programs[i]}" $flags --eval_every=0 --log_format=json > run.json 2> run.err || fail "$name $flags: $(tail -1 run.err)"
    accuracy=$(sed -n 's/^{"step":[0-9]*,"test_accuracy":\([0-9.]*\)}$/\1/p' run.json | tail -1)
    echo "$name $flags: ${accuracy:-no accuracy}"
    holds "${accuracy:-0} > ${floors[i]}" || fail "$name $flags: accuracy '$accuracy', expected above ${floors[i]}"
    accuracies+=("${accuracy:-0}")
  done
  least=$(printf '%s\n' "${accuracies[@]}" | sort -g | head -1)
  most=$(printf '%s\n' "${accuracies[@]}" | sort -g | tail -1)
  holds "$most - $least <= $spread" || fail "$name: accuracies of $least to $most, expected within $spread of each other"
done
exit $((failures > 0))

#!/bin/bash
# .ci/nightly --shard=K/N: the shards hold what `bazel test //...` would run, each test once, and none that is asked for by
# name alone (manual). Bazel is a stub that knows five tests. Argument: the script.
set -u
nightly=$1
stubs=$TEST_TMPDIR/stubs
mkdir -p "$stubs"
fail() {
  echo "FAILED: $*" >&2
  exit 1
}

cat > "$stubs/bazel" << 'END'
#!/bin/bash
# As Bazel's query language has it: what follows `except` is taken away.
printf '%s\n' "$*" >> "$ASKED"
[[ $1 == query ]] || exit 0
if [[ $2 == "attr(tags, "* ]]; then exit 0; fi
printf '//a:%s\n' one two three four five
except=' except attr(tags, "[\[ ]manual[,\]]", tests(//...))'
if [[ $2 != "tests(//...)$except" ]]; then printf '//a:%s\n' on_gpu enormous; fi
END
chmod +x "$stubs/bazel"
export ASKED=$TEST_TMPDIR/asked

for num_shards in 2 3; do
  : > "$ASKED"
  for ((shard = 1; shard <= num_shards; shard++)); do
    PATH=$stubs:$PATH bash "$nightly" "--shard=$shard/$num_shards" tsan > "$TEST_TMPDIR/out" 2>&1
    grep -q "^=== tsan, part $shard of $num_shards" "$TEST_TMPDIR/out" || fail "$(cat "$TEST_TMPDIR/out")"
  done
  tested=$(grep '^test ' "$ASKED" | tr ' ' '\n' | grep '^//' | sort | tr '\n' ' ')
  [[ $tested == "//a:five //a:four //a:one //a:three //a:two " ]] || fail "$num_shards shards test $tested"
done
# Without shards Bazel leaves them out itself.
: > "$ASKED"
PATH=$stubs:$PATH bash "$nightly" tsan > "$TEST_TMPDIR/out" 2>&1
grep -q '^test .*--config=tsan //\.\.\.$' "$ASKED" || fail "$(cat "$ASKED")"

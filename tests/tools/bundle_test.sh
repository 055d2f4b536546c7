#!/usr/bin/env bash
# A bundle starts a program elsewhere, with none of this machine's libraries but those that every machine has.
set -euo pipefail
bundle=$PWD/$1
program=$PWD/$2
work=$(mktemp -d "$TEST_TMPDIR/bundle.XXXXXX")

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
expect_error() {
  local expected=$1
  shift
  local said
  said=$("$bundle" "$@" 2>&1 >/dev/null) && fail "no error: bundle $*"
  [[ $said == *"$expected"* ]] || fail "expected '$expected', got '$said'"
}

"$bundle" --help | grep -q 'usage: bundle PROGRAM... -o FOLDER' || fail "--help"
expect_error "no program given" -o "$work/x"
expect_error "no folder given: -o FOLDER" "$program"
expect_error "is not a program; build it first" "$work/nothing" -o "$work/x"
expect_error "unknown option --output" --output
mkdir "$work/there"
expect_error "$work/there exists already" "$program" -o "$work/there"
cp "$program" "$work/there"
other=$work/there/$(basename "$program")
expect_error "expected programs of different names, got $program and $other" "$program" "$other" -o "$work/x"
[[ ! -e $work/x ]] || fail "a folder of what was refused"

(cd "$work" && BUILD_WORKING_DIRECTORY=$work "$bundle" "$program" -o packed)
name=$(basename "$program")
mv "$work/packed" "$work/moved"
# All libraries come from the bundle, or are the machine's.
while read -r library arrow path _; do
  [[ ${arrow:-} == '=>' ]] || continue
  case $library in libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.* | libutil.so.* | libnsl.so.*) continue ;; esac
  [[ $path == "$work/moved/lib/"* ]] || fail "$library comes from $path"
done < <(LD_LIBRARY_PATH=$work/moved/lib ldd "$work/moved/lib/$name")
ln -s "$work/moved/$name" "$work/link"
env -i PATH=/usr/bin:/bin "$work/link" >"$work/said" || fail "the program does not start: $(cat "$work/said")"
grep -q . "$work/said" || fail "the program says nothing"

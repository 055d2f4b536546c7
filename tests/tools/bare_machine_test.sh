#!/usr/bin/env bash
# tools/bare_machine.sh runs the commands that the README gives, and says in one line what is wrong with its arguments.
# Arguments: that script, README.md.
set -euo pipefail
script=$PWD/$1
readme=$PWD/$2

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
expect_error() {
  local expected=$1 said
  shift
  said=$("$script" "$@" 2>&1) && fail "no error: $*"
  [[ $said == "error: $expected" ]] || fail "$*: expected '$expected', got '$said'"
}

commands=$(sed -nE "s/^(train|test)='(.*)'$/\2/p" "$script")
[[ $(wc -l <<<"$commands") == 2 ]] || fail "expected two commands in the script, found: $commands"
while read -r command; do
  grep -qE "^    ${command//./\\.} +#" "$readme" || fail "the README does not give the command: $command"
done <<<"$commands"

"$script" --help | grep -q '^usage: tools/bare_machine.sh FOLDER' || fail "--help"
while read -r part; do
  "$script" --help | grep -qE "^  $part +" || fail "--help does not tell of the part $part"
done < <(sed -nE 's/^parts=\((.*)\)$/\1/p' "$script" | tr ' ' '\n')
expect_error "no folder given; see --help"
expect_error "expected one folder, got 'a' and 'b'" a b
expect_error "unknown option --form=base; see --help" a --form=base
expect_error "'bas' is none of base root root_train root_test user user_train" a --from=bas

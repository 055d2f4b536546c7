#!/usr/bin/env bash
# Writes the API reference: see usage.
set -euo pipefail

usage() {
  cat <<'TEXT'
Writes the API reference, HTML made by Doxygen from the contracts in the headers, and prints the path of its first page.

usage: bazel run //docs:api -- [FOLDER]

  FOLDER      where to write, by default api/ in the tree, which git ignores
  --help      this text

Needs the package doxygen, which the build does not: apt-get install doxygen. Exits 1 where Doxygen has a warning.
TEXT
}

fail() {
  echo "error: $*" >&2
  exit 1
}

folder=
for word in "$@"; do
  case $word in
    --help | -h)
      usage
      exit 0
      ;;
    -*) fail "unknown flag $word; see --help" ;;
    *)
      [[ -z $folder ]] || fail "expected one folder, got '$folder' and '$word'"
      folder=$word
      ;;
  esac
done

# Bazel starts this in a folder of its own, and says where the tree is and where the user stands.
root=${BUILD_WORKSPACE_DIRECTORY:-$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../..}
folder=$(cd "${BUILD_WORKING_DIRECTORY:-$PWD}" && realpath -m "${folder:-$root/api}")
cd "$root"
command -v doxygen >/dev/null || fail "there is no doxygen; apt-get install doxygen"
mkdir -p "$folder"
version=$(sed -n 's/.*kVersion\[\] = "\(.*\)";/\1/p' runtime/base/version.h)
{
  cat docs/api/Doxyfile
  printf 'PROJECT_NUMBER = "%s"\nOUTPUT_DIRECTORY = "%s"\n' "$version" "$folder"
} | doxygen - || fail "Doxygen has warnings, or failed; they stand above"
echo "$folder/index.html"

#!/usr/bin/env bash
# Makes this machine ready to build Weft: ./setup.sh
#
# On Debian 12 it installs what the build needs and puts what the examples train on into data: a text, jargon.txt, and the
# images of Fashion-MNIST, fashion-mnist/.
# What is there already is left alone, and when nothing is missing it prints nothing. On any other system it names
# the packages and stops.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# One per line, so that a change is one line.
packages=(
  bazel-bootstrap
  clang-format
  g++
  git
  iproute2
  libabsl-dev
  libdnnl-dev
  libeigen3-dev
  libfaketime
  libgloo-dev
  libgmock-dev
  libgrpc++-dev
  libgtest-dev
  libhwy-dev
  libisal-dev
  libopenmpi-dev
  libprotobuf-dev
  mount
  nlohmann-json3-dev
  openmpi-bin
  openssl
  procps
  protobuf-compiler
  protobuf-compiler-grpc
  python3-yaml
  shellcheck
  valgrind
)
text=data/jargon.txt
images=data/fashion-mnist

fail() {
  echo "setup.sh: $*" >&2
  exit 1
}

is_debian_12() {
  [[ -r /etc/os-release ]] || return 1
  (. /etc/os-release && [[ ${ID:-} == debian && ${VERSION_ID:-} == 12 ]])
}

missing_packages() {
  local package
  for package in "${packages[@]}"; do
    [[ $(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
      echo "$package"
  done
}

as_root() {
  if [[ $(id -u) == 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    fail "this needs root, and there is no sudo: run it as root"
  fi
}

# The Jargon File, out of Debian's package: minimal images install packages without their /usr/share/doc, where the
# text lies, so the package is taken apart instead. So are the images, which are wanted unpacked.
#
# download FOLDER PACKAGE
download() {
  if ! download_package "$@" 2>/dev/null; then
    # No package lists, or old ones.
    update_lists
    download_package "$@" || fail "cannot download the package $2"
  fi
}

download_package() {
  (cd "$1" && apt-get download --quiet=2 --option APT::Sandbox::User=root "$2")
}

write_text() {
  local folder=$1 member
  dpkg-deb --fsys-tarfile "$folder"/jargon-text_*.deb >"$folder/files.tar"
  member=$(tar --list --file "$folder/files.tar" | grep -E '/jargon\.txt(\.gz)?$') ||
    fail "no jargon.txt in the package jargon-text"
  tar --extract --to-stdout --file "$folder/files.tar" "$member" >"$folder/text"
  if [[ $member == *.gz ]]; then
    mv "$folder/text" "$folder/text.gz"
    gzip --decompress "$folder/text.gz"
  fi
  [[ $(wc -c <"$folder/text") -gt 1000000 ]] || fail "the text in the package jargon-text is too short"
  mkdir -p "$(dirname "$text")"
  # By way of a name of its own: an interrupted run must not leave half a text.
  cp "$folder/text" "$text.part"
  mv "$text.part" "$text"
  echo "wrote $text ($(wc -c <"$text") bytes)"
}

write_images() {
  local folder=$1 name
  dpkg-deb --extract "$folder"/dataset-fashion-mnist_*.deb "$folder/images"
  mkdir -p "$images.part"
  for name in {train,t10k}-{images-idx3,labels-idx1}-ubyte; do
    gzip --decompress --stdout "$folder/images/usr/share/datasets/fashion-mnist/$name.gz" >"$images.part/$name" ||
      fail "no $name in the package dataset-fashion-mnist"
  done
  rm -rf "$images"
  mv "$images.part" "$images"
  echo "wrote $images ($(du --apparent-size --bytes --summarize "$images" | cut -f1) bytes)"
}

if ! is_debian_12; then
  {
    echo "setup.sh knows Debian 12 only. On this system, install by hand what these Debian packages hold:"
    printf '  %s\n' "${packages[@]}"
    echo "(bazel-bootstrap is Bazel 4.2), put any English text of about 2 MB into $text,"
    echo "and the four files of Fashion-MNIST, unpacked, into $images."
  } >&2
  exit 1
fi

update_lists() {
  as_root apt-get update --quiet=2 || fail "apt-get update failed"
}

mapfile -t missing < <(missing_packages)
if [[ ${#missing[@]} -gt 0 ]]; then
  echo "installing ${missing[*]}"
  update_lists
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends "${missing[@]}" ||
    fail "apt-get install failed"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [[ ! -s $text ]]; then
  download "$work" jargon-text
  write_text "$work"
fi
if [[ ! -d $images ]]; then
  download "$work" dataset-fashion-mnist
  write_images "$work"
fi

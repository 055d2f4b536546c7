#!/usr/bin/env bash
# Runs the README's first commands as a stranger would, on a bare Debian 12 in a folder:
#
#   tools/bare_machine.sh /var/tmp/bare
#
# When to run it: tools/README.md. What it does and its options: --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
Runs the README's first commands as a stranger would, on a bare Debian 12 in a folder. Needs root, debootstrap and git.

usage: tools/bare_machine.sh FOLDER [--from=PART | --only=PART | --run=COMMAND] [--refuse_user_namespaces]

  FOLDER       where the machine is made; parts that have ended well there are not run again
  --from=PART  runs PART and those after it again
  --only=PART  runs PART again and no other
  --run=COMMAND
               runs a command of yours as root in the machine's clone, after the part `root`, to look around:
               --run='./setup.sh && bazel build //runtime/base:error'
  --refuse_user_namespaces
               the kernel refuses them there, as in many containers: Bazel's sandbox and tests must do without
  --help       this text

parts, in order:
  base         debootstrap --variant=minbase bookworm, from the mirror that this machine's apt uses
  root         a copy of it with a clone of HEAD
  root_train   as root: ./setup.sh && bazel run //examples:train_gpt
  root_test    as root: ./setup.sh && bazel test //...
  user         another copy, with an ordinary user, sudo and a clone of HEAD
  user_train   as that user: ./setup.sh && bazel run //examples:train_gpt

Prints each part's time and what it left on the disk, and where a part fails its first errors; the output of each part is in
FOLDER/log. Every mount is in a namespace of the command's own and goes with it. Remove FOLDER when you are done.
TEXT
}

parts=(base root root_train root_test user user_train)

fail() {
  echo "error: $*" >&2
  exit 1
}

is_part() { [[ " ${parts[*]} " == *" $1 "* ]]; }

# ---- The machine.

# in_machine MACHINE COMMAND...: runs it there as root, with /proc, /sys, /dev and /dev/shm. Namespaces of its own hold the mounts
# and the processes: nothing is left of either, whatever the end. The machine's root becomes the root of its namespace
# (pivot_root), since the kernel gives no user namespace to what a chroot confines.
in_machine() {
  # shellcheck disable=SC2016  # the inner shell expands these
  unshare --mount --pid --fork --kill-child bash -c '
    set -eu
    machine=$1
    enter=$2
    shift 2
    mount --bind "$machine" "$machine"
    mount -t proc proc "$machine/proc"
    mount --rbind /sys "$machine/sys"
    mount --rbind /dev "$machine/dev"
    mount -t tmpfs -o mode=1777 tmpfs "$machine/dev/shm"
    cd "$machine"
    if [[ $enter == pivot ]]; then
      pivot_root . .
      umount -l .
      cd /
      exec "$@"
    fi
    exec chroot . "$@"
  ' in_machine "$1" "$enter" env -i HOME=/root USER=root TERM=dumb "${proxies[@]}" \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${@:2}"
}

# The mirrors of Debian 12 that this machine's apt is set to, as lines of sources.list.
debian_sources() {
  # shellcheck disable=SC2016  # apt-get fills these in
  apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    awk '$2 ~ /^bookworm(-updates|-security)?$/ && !seen[$0]++ { print "deb", $0 }'
}

# What apt here has been told of proxies, certificates and dates, as lines of apt.conf.
apt_settings() {
  apt-config dump | grep -E '^Acquire::(http|https|ftp|Retries|ForceIPv[46]|Check-Valid-Until|Check-Date)\b.* "[^"]+";$' || true
}

make_base() {
  local sources mirror file
  sources=$(debian_sources)
  mirror=$(awk '$3 == "bookworm" && $4 == "main" { print $2; exit }' <<<"$sources")
  [[ -n $mirror ]] || fail "apt here has no source of bookworm main: /etc/apt/sources.list names none"
  rm -rf "$folder/base"
  env "${proxies[@]}" debootstrap --variant=minbase bookworm "$folder/base" "$mirror"
  echo "$sources" >"$folder/base/etc/apt/sources.list"
  apt_settings >"$folder/base/etc/apt/apt.conf.d/90bare-machine"
  # Certificates that these settings name, and for https all that this machine trusts.
  {
    sed -nE 's/^Acquire::[^ ]*::(CaInfo|SslCert|SslKey) "(.*)";$/\2/p' "$folder/base/etc/apt/apt.conf.d/90bare-machine"
    [[ $mirror != https:* ]] || echo /etc/ssl/certs/ca-certificates.crt
  } | while read -r file; do
    install -D --mode=644 "$file" "$folder/base$file"
  done
}

# make_copy NAME HOME: a machine like base; the tree's HEAD is in HOME/weft.
make_copy() {
  rm -rf "${folder:?}/$1"
  cp -a --reflink=auto "$folder/base" "$folder/$1"
  mkdir -p "$folder/$1$2"
  git clone --quiet --no-hardlinks "$tree" "$folder/$1$2/weft"
  git -C "$tree" rev-parse HEAD >"$folder/$1.commit"
}

make_root() { make_copy root /root; }

make_user() {
  make_copy user /home/stranger
  in_machine "$folder/user" bash -euc '
    apt-get update --quiet=2
    DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends sudo
    rm -rf /var/lib/apt/lists/*
    useradd --shell /bin/bash stranger
    echo "stranger ALL=(ALL) NOPASSWD: ALL" >/etc/sudoers.d/stranger
    chown -R stranger: /home/stranger'
}

# What a stranger types: the README's words.
train='./setup.sh && bazel run //examples:train_gpt'
test='./setup.sh && bazel test //...'

as_root() {
  holds_head root
  in_machine "$folder/root" bash -c "cd ~/weft && $1"
}

as_user() {
  holds_head user
  in_machine "$folder/user" runuser --login stranger --command "cd ~/weft && $1"
}

holds_head() {
  local held head
  [[ -e $folder/$1.commit ]] || fail "there is no $folder/$1: run the part $1 first"
  held=$(cat "$folder/$1.commit")
  head=$(git -C "$tree" rev-parse HEAD)
  [[ $held == "$head" ]] || fail "$folder/$1 holds commit $held, HEAD is $head: run --from=$1"
}

# ---- The parts.

run_part() {
  case $1 in
    base) make_base ;;
    root) make_root ;;
    root_train) as_root "$train" ;;
    root_test) as_root "$test" ;;
    user) make_user ;;
    user_train) as_user "$train" ;;
  esac
}

# What a machine's caches take, where Bazel keeps all that it builds.
built_bytes() {
  local cache
  case $1 in
    root_*) cache=$folder/root/root/.cache ;;
    user_*) cache=$folder/user/home/stranger/.cache ;;
    *) return 0 ;;
  esac
  [[ ! -e $cache ]] || echo ", $(du --summarize --block-size=1 "$cache" | cut -f1) bytes of disk in ~/.cache"
}

# The run of a part, its time, and its first errors. A part runs in a shell of its own: `set -e` holds in it.
timed_part() {
  local part=$1 log=$folder/log/$1 begin=$SECONDS status=0
  rm -f "$folder/done/$part"
  echo "$part: started, output in $log"
  "${BASH_SOURCE[0]}" "$folder" --inside="$part" "${own_options[@]}" >"$log" 2>&1 </dev/null || status=$?
  if ((status == 0)); then
    echo "$((SECONDS - begin))" >"$folder/done/$part"
    echo "$part: ended well in $((SECONDS - begin)) s$(built_bytes "$part")"
    return 0
  fi
  echo "$part: FAILED after $((SECONDS - begin)) s with exit code $status; its first errors:"
  grep -m 5 -nE '(^|[^[:alnum:]_])(E|ERROR|FAIL|FAILED|error|fatal):|FAILED in|command not found' "$log" ||
    tail -n 5 "$log"
  return 1
}

folder=
from=
only=
inside=
command=
enter=pivot
own_options=()
while (($#)); do
  case $1 in
    --help | -h)
      usage
      exit 0
      ;;
    --from=*) from=${1#*=} ;;
    --only=*) only=${1#*=} ;;
    --run=*) command=${1#*=} ;;
    --inside=*) inside=${1#*=} ;; # a part in a process of its own: see timed_part
    --refuse_user_namespaces)
      enter=chroot
      own_options=("$1")
      ;;
    -*) fail "unknown option $1; see --help" ;;
    *)
      [[ -z $folder ]] || fail "expected one folder, got '$folder' and '$1'"
      folder=$1
      ;;
  esac
  shift
done
[[ -n $folder ]] || fail "no folder given; see --help"
for part in "$from" "$only" "$inside"; do
  [[ -z $part ]] || is_part "$part" || fail "'$part' is none of ${parts[*]}"
done
[[ $(id -u) == 0 ]] || fail "it makes a root file system: run it as root"
for program in debootstrap git unshare; do
  command -v "$program" >/dev/null || fail "there is no $program: apt-get install debootstrap git util-linux"
done
# Bazel must not find the tree's own files above the machine's clone, nor the tree the machine's.
tree=$(git -C "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" rev-parse --show-toplevel)
folder=$(realpath -m "$folder")
[[ $folder/ != "$tree"/* ]] || fail "$folder is in the tree: choose a folder outside"

# Proxies of apt's settings or of the environment, for debootstrap and for what runs in the machine.
proxies=()
for kind in http https; do
  proxy=
  eval "$(apt-config shell proxy "Acquire::$kind::Proxy")"
  name=${kind}_proxy
  [[ -n $proxy ]] || proxy=${!name:-}
  [[ -z $proxy || $proxy == DIRECT ]] || proxies+=("$name=$proxy")
done
[[ -z ${no_proxy:-} ]] || proxies+=("no_proxy=$no_proxy")

if [[ -n $inside ]]; then
  run_part "$inside"
  exit 0
fi
mkdir -p "$folder/done" "$folder/log"
if [[ -n $command ]]; then
  as_root "$command"
  exit 0
fi

# Forgets what is to run again.
forgets=
for part in "${parts[@]}"; do
  [[ $part != "$from" ]] || forgets=yes
  if [[ -n $forgets || $part == "$only" ]]; then rm -f "$folder/done/$part"; fi
done
echo "commit $(git -C "$tree" rev-parse HEAD), machine in $folder"
for part in "${parts[@]}"; do
  if [[ -n $only && $part != "$only" ]]; then continue; fi
  if [[ -e $folder/done/$part ]]; then
    echo "$part: ended well before, in $(cat "$folder/done/$part") s"
  else
    timed_part "$part" || exit 1
  fi
done
echo "all of it ended well"

# shellcheck shell=bash
# For tests of several hosts, to be sourced.
#
# enter_namespaces FLAGS... -- ARGUMENTS...: runs the test again as root of namespaces of its own, which unshare(1)'s FLAGS
# name, with WEFT_IN_NAMESPACE=1. Returns at once where it is 1 already. Where the kernel refuses namespaces (containers,
# kernel.unprivileged_userns_clone=0, user.max_user_namespaces=0) the test ends with the line "skipped: why", which
# .ci/run counts.
enter_namespaces() {
  [[ ${WEFT_IN_NAMESPACE:-} != 1 ]] || return 0
  local flags=() refusal
  while [[ $1 != -- ]]; do
    flags+=("$1")
    shift
  done
  shift
  # The C locale, for the words that are looked for.
  if ! refusal=$(LC_ALL=C unshare --user --map-root-user "${flags[@]}" true 2>&1); then
    case $refusal in
      *"Operation not permitted"* | *"Permission denied"* | *"No space left on device"* | *"Invalid argument"* | \
        *"Function not implemented"*)
        echo "skipped: the kernel refuses namespaces: $refusal"
        exit 0
        ;;
    esac
    echo "FAILED: unshare: $refusal" >&2
    exit 1
  fi
  exec unshare --user --map-root-user "${flags[@]}" env WEFT_IN_NAMESPACE=1 "$0" "$@"
}

# shellcheck shell=bash
# The blocks of a page that show a command, to be sourced.

# each_command PAGE FUNCTION: of each block of the page that begins with "$ bazel run", calls FUNCTION with what stands
# behind that and with the lines below.
each_command() {
  local page=$1 function=$2 line command='' body='' inside=no
  while IFS= read -r line; do
    if [[ $line == '```'* && $inside == no ]]; then
      inside=yes
      command=
      body=
    elif [[ $line == '```' ]]; then
      inside=no
      [[ -z $command ]] || "$function" "$command" "${body%$'\n'}"
    elif [[ $inside == yes && -z $command && -z $body && $line == '$ bazel run '* ]]; then
      command=${line#'$ bazel run '}
    elif [[ $inside == yes ]]; then
      body+=$line$'\n'
    fi
  done <"$page"
}

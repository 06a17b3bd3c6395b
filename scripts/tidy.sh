#!/usr/bin/env bash
# clang-tidy (profile: .clang-tidy) over the sources of the library and of the command: scripts/tidy.sh [PATTERN] takes
# those whose path matches PATTERN. It reads the commands of build/sanitize, as .ci/run or the preset `sanitize`
# configures it: one SIMD target, and from .ci/run the command's sources together, since most of the time goes into the
# headers that they share.
set -euo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/.."

pattern=${1:-.}
commands=build/sanitize/compile_commands.json
[[ -e $commands ]] || {
  echo "no $commands: cmake --preset sanitize" >&2
  exit 1
}
mapfile -t files < <(sed -n 's/^ *"file": "\(.*\)".*/\1/p' $commands | sed "s|^$PWD/||" |
  grep -E '^(build/sanitize/)?(src|cli)/.*\.(cc|cxx)$' | grep -E "$pattern" | sort) # the command's first: the longest
# One check follows every parameter of a function through it: with CLI11's functions it takes longer than all others, so
# the sources that are compiled together with command.cc go without it.
# shellcheck disable=SC2016  # the inner shell's variables
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" sh -c '
  if grep -qE "command\.cc|CLI/CLI\.hpp" "$0"; then set -- --checks=-performance-unnecessary-value-param; fi
  exec clang-tidy --quiet "$@" -p build/sanitize "$0"'
echo "clang-tidy: ${#files[@]} files"

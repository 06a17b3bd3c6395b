# What ./run, ./test and .ci/run share: words on the terminal, packages, builds. Sourced by them, never run.
# shellcheck shell=bash disable=SC2034

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
SECONDS=0

# --- words ------------------------------------------------------------------------------------------------------

bold='' dim='' red='' green='' yellow='' plain=''
if [[ -t 1 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
  bold=$'\e[1m' dim=$'\e[2m' red=$'\e[31m' green=$'\e[32m' yellow=$'\e[33m' plain=$'\e[0m'
fi

heading() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
say() { printf '  %s\n' "$*"; }
note() { printf '  %s%s%s\n' "$yellow" "$*" "$plain"; }

# die MESSAGE [WHAT_TO_DO]
die() {
  printf '\n%s%s%s\n' "$red" "$1" "$plain" >&2
  [[ $# -lt 2 ]] || printf '  %s\n' "${@:2}" >&2
  exit 1
}

# --- packages ---------------------------------------------------------------------------------------------------
# One entry a line: the Debian and Ubuntu package, and what shows that it is there however it came: a command, or a
# header under an include folder.

library_needs=(
  g++:g++
  cmake:cmake
  ninja-build:ninja
  libhwy-dev:hwy/highway.h
  libtbb-dev:tbb/parallel_for.h
  libfmt-dev:fmt/format.h
  nlohmann-json3-dev:nlohmann/json.hpp
  libcli11-dev:CLI/CLI.hpp
)

test_needs=(
  libgtest-dev:gtest/gtest.h
  librapidcheck-dev:rapidcheck.h
  libgmp-dev:gmp.h
  libmpfr-dev:mpfr.h
  pkgconf:pkg-config
)

is_present() {
  local folder
  case $1 in
    *.h | *.hpp | */*)
      for folder in /usr/include /usr/local/include /usr/include/"$(uname -m)"-linux-gnu; do
        [[ -e $folder/$1 ]] && return 0
      done
      return 1
      ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

# missing_of ENTRY...: the packages that are not there, one a line.
missing_of() {
  local entry
  for entry in "$@"; do
    is_present "${entry#*:}" || printf '%s\n' "${entry%%:*}"
  done
}

# as_root COMMAND...: runs it as root, however we can become it.
as_root() {
  if [[ $(id -u) == 0 ]]; then
    "$@"
  else
    sudo "$@"
  fi
}

# install_packages LOG PACKAGE...: false if that failed; LOG then has apt's words.
install_packages() {
  local log=$1
  shift
  mkdir -p "$(dirname -- "$log")"
  {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update &&
      as_root env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "$@"
  } </dev/null >"$log" 2>&1
}

# need_packages LABEL ENTRY...: installs what is missing after saying so; without anything missing it does nothing.
need_packages() {
  local label=$1 log=$root/build/install.log missing=()
  shift
  mapfile -t missing < <(missing_of "$@")
  if [[ ${#missing[@]} == 0 ]]; then
    say "$label: all there, nothing to install"
    return
  fi
  say "$label: installing ${missing[*]}"
  command -v apt-get >/dev/null ||
    die "This system has no apt-get." "Install what these Debian packages hold, then run this again: ${missing[*]}"
  if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null ||
      die "Installing needs root, and there is no sudo." "As root: apt-get install ${missing[*]}" "Then run this again."
    sudo -n true 2>/dev/null || { [[ -t 0 ]] && sudo -v; } ||
      die "sudo did not let us in." "Run by hand: sudo apt-get install ${missing[*]}" "Then run this again."
  fi
  local before=$SECONDS
  install_packages "$log" "${missing[@]}" || {
    tail -n 15 "$log" >&2
    die "apt-get could not install the packages (its words are above; all of them: $log)." \
      "Repair that, or install by hand: apt-get install ${missing[*]}" "Then run this again."
  }
  say "installed in $((SECONDS - before)) s"
}

# --- builds -----------------------------------------------------------------------------------------------------

# Compilations at once: one a CPU, fewer where memory is short (about 1 GB each).
jobs() {
  local cpus kilobytes by_memory
  cpus=$(nproc)
  kilobytes=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
  by_memory=$((${kilobytes:-4000000} / 1000000))
  ((by_memory >= 1)) || by_memory=1
  echo "${SOFTFOLD_JOBS:-$((cpus < by_memory ? cpus : by_memory))}"
}

# build FOLDER "CMAKE ARGUMENTS" [TARGET...]: configures and builds build/FOLDER; shows the log's end if that fails.
build() {
  local folder=$root/build/$1 log=$root/build/$1/build.log before=$SECONDS arguments=() targets=() target line
  read -ra arguments <<<"$2"
  shift 2
  for target in "$@"; do targets+=(--target "$target"); done
  if command -v ccache >/dev/null; then arguments+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  mkdir -p "$folder"
  cmake -S "$root" -B "$folder" -G Ninja "${arguments[@]}" >"$log" 2>&1 || {
    tail -n 30 "$log" >&2
    die "CMake could not configure the build (all it said: $log)." \
      "If a package is named above, install it; after a compiler upgrade remove $folder and run this again."
  }
  if ! cmake --build "$folder" --parallel "$(jobs)" "${targets[@]}" 2>&1 | while IFS= read -r line; do
    printf '%s\n' "$line" >>"$log"
    if [[ -t 1 && $line =~ ^\[([0-9]+)/([0-9]+)\] ]]; then
      printf '\r  %scompiling %s of %s%s ' "$dim" "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" "$plain"
    fi
  done; then
    printf '\n' && grep -E -A 12 'error|FAILED|undefined' "$log" | head -n 60 >&2
    die "The build failed (all of it: $log)." "An honest defect: please report it with that file."
  fi
  [[ ! -t 1 ]] || printf '\r\e[K'
  say "built in $((SECONDS - before)) s: build/${folder##*/}"
}

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
# One entry a line: the Debian and Ubuntu package, and what shows that it is there however it came: a command, a
# header under an include folder, a run-time library of clang, or a function here (has_*).

# For ./run: what the library and its command are built with.
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

# For ./test: the libraries of the tests, clang for the fuzzers, Python for the package.
test_needs=(
  libgtest-dev:gtest/gtest.h
  librapidcheck-dev:rapidcheck.h
  libgmp-dev:gmp.h
  libmpfr-dev:mpfr.h
  pkgconf:pkg-config
  clang:clang++
  libclang-rt-dev:libclang_rt.fuzzer
  python3-venv:has_python_venv
  python3-dev:has_python_headers
)

# For .ci/run: other compilers and machines, and what reads the sources.
ci_needs=(
  ccache:ccache
  clang-format:clang-format
  clang-tidy:clang-tidy
  shellcheck:shellcheck
  g++-aarch64-linux-gnu:aarch64-linux-gnu-g++
  qemu-user-static:qemu-aarch64-static
)

has_python_venv() { python3 -c 'import ensurepip, venv' 2>/dev/null; }
has_python_headers() {
  python3 -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null
}

is_present() {
  local folder
  case $1 in
    has_*) "$1" ;;
    libclang_rt.*) compgen -G "$(clang++ -print-resource-dir 2>/dev/null)/lib/*/$1*" >/dev/null ;;
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

# follow LOG WORD: copies what it reads to LOG; on a terminal it shows how far ninja or ctest has come.
follow() {
  local line
  while IFS= read -r line; do
    printf '%s\n' "$line" >>"$1"
    if [[ -t 1 && $line =~ ^[[:space:]\[]*([0-9]+)/([0-9]+)[\]\ ] ]]; then
      printf '\r  %s%s %s of %s%s ' "$dim" "$2" "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" "$plain"
    fi
  done
  [[ ! -t 1 ]] || printf '\r\e[K'
}

# build FOLDER "CMAKE ARGUMENTS" [TARGET...]: configures and builds build/FOLDER; shows the log's end if that fails.
build() {
  local folder=$root/build/$1 log=$root/build/$1/build.log before=$SECONDS arguments targets=() target
  read -r -d '' -a arguments <<<"$2" || true
  shift 2
  for target in "$@"; do targets+=(--target "$target"); done
  if command -v ccache >/dev/null; then arguments+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  mkdir -p "$folder"
  cmake -S "$root" -B "$folder" -G Ninja "${arguments[@]}" >"$log" 2>&1 </dev/null || {
    tail -n 30 "$log" >&2
    die "CMake could not configure the build (all it said: $log)." \
      "If a package is named above, install it; after a change of compilers remove $folder and run this again."
  }
  cmake --build "$folder" --parallel "$(jobs)" "${targets[@]}" 2>&1 </dev/null | follow "$log" compiling || {
    grep -E -A 12 'error|FAILED|undefined' "$log" | head -n 60 >&2
    if grep -q 'No space left on device' "$log"; then
      die "The disk is full (all of the build: $log)." \
        "Free some space in ${TMPDIR:-/tmp} and beside the build, and run this again."
    fi
    die "The build failed (all of it: $log)." "Please report it with that file."
  }
  say "built in $((SECONDS - before)) s: build/${folder##*/}"
}

# --- tests ------------------------------------------------------------------------------------------------------

passed=0 failed=0 skipped=()

# attribute NAME XML: the number in NAME="...".
attribute() { if [[ $2 =~ [[:space:]]$1=\"([0-9]+)\" ]]; then echo "${BASH_REMATCH[1]}"; else echo 0; fi; }

# run_ctest FOLDER CTEST_ARGUMENTS...: runs build/FOLDER's tests and adds them to passed, failed and skipped.
run_ctest() {
  local folder=$root/build/$1 log=$root/build/$1/tests.log report=$root/build/$1/tests.xml
  local before=$SECONDS status=0 head tests failures skips
  shift
  rm -f "$report" "$log"
  ctest --test-dir "$folder" --parallel "$(jobs)" --output-on-failure --no-tests=ignore --output-junit "$report" \
    "$@" 2>&1 </dev/null | follow "$log" testing || status=$?
  [[ -e $report ]] || { tail -n 20 "$log" >&2 && die "ctest did not finish (all it said: $log)."; }
  head=$(grep -m 1 -A 10 '<testsuite ' "$report")
  tests=$(attribute tests "$head") failures=$(attribute failures "$head") skips=$(attribute skipped "$head")
  ((status == 0 || failures > 0)) || failures=1
  passed=$((passed + tests - failures - skips)) failed=$((failed + failures))
  ((skips == 0)) || skipped+=("$skips tests that this machine cannot run; each says why in $log")
  if ((failures > 0)); then
    grep -E -B 40 '\*\*\*(Failed|Timeout|Exception|Not Run)' "$log" | tail -n 200 || true
    sed -n '/The following tests FAILED/,$p' "$log"
  fi
  say "$tests tests in $((SECONDS - before)) s, $failures failed, $skips skipped: build/${folder##*/}"
}

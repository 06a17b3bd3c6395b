#!/usr/bin/env bash
# Checks and times the CUDA softmax family on this machine's GPU, in one call, and writes the records.
#
#   bench/gpu_all.sh [OPTION...]
#
#   --build DIR      a build folder with the CUDA backend and the tests (default build/cuda)
#   --out DIR        where the records go, rows.jsonl and its like (default BUILD/gpu_all); every step's log goes to
#                    BUILD/gpu_all/logs
#   --steps LIST     of these, with commas (default all of them):
#                    tests                                      tests/cuda but for the next
#                    limits                                     cuda_limits, by itself: it provokes faults
#                    memcheck, racecheck, initcheck, synccheck  a reduced grid of the tests under compute-sanitizer
#                    rows                                       every operation of rows beside torch
#                    softmax                                    plain softmax beside all peers
#                    consumers                                  losses, top-k, sampling, shards
#                    linear                                     linear and cross-entropy in one
#   --peers LIST     of torch, compile, triton, triton-online, liger, quack, flashinfer, cce, cce-exact (default torch);
#                    a benchmark takes those that it knows
#   --limit S        seconds for one test program or one benchmark (default 0: none). A benchmark begins no further point
#                    then; a program is stopped, which counts as a failure
#   --long           also the tests that take minutes (their names contain Long)
#   --resume         benchmarks add to the records there are: the points that are missing
#   --seconds S      time for one point of a benchmark, beyond 7 rounds (default 0.06)
#   --jobs N         test programs at a time (default 4; under compute-sanitizer too)
#   --every N        under compute-sanitizer, every Nth case of the lists of losses, top-k and sampling (default 20)
#   --barriers N     synccheck and racecheck follow as many barriers a block (default 4096; too few end as an overflow)
#   --commit HASH    what the records name (default: git's HEAD, or SOFTFOLD_COMMIT)
#   --dry-run        print the commands only
#
# PYTHON=... chooses the Python of the benchmarks, which need torch. What is skipped is said, with the reason. The exit
# status is 0 if nothing failed, 77 if all was skipped.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/common.sh"
cd "$root"

all_steps=tests,limits,memcheck,racecheck,initcheck,synccheck,rows,softmax,consumers,linear
all_peers=torch,compile,triton,triton-online,liger,quack,flashinfer,cce,cce-exact
build=build/cuda out='' steps=$all_steps peers=torch limit=0 resume=() seconds=0.06 at_once=4 every=20 barriers=4096
commit=$(git rev-parse --short HEAD 2>/dev/null || echo "${SOFTFOLD_COMMIT:-}") dry=false python=${PYTHON:-python3}
quick=('--gtest_filter=-*Long*')
while (($#)); do
  case $1 in
    -h | --help) sed -n '2,32s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit ;;
    --long) quick=() ;;
    --resume) resume=(--resume) ;;
    --dry-run) dry=true ;;
    --build | --out | --steps | --peers | --limit | --seconds | --jobs | --every | --barriers | --commit)
      (($# > 1)) || die "$1 has no value." "bench/gpu_all.sh --help"
      case $1 in
        --build) build=${2%/} ;;
        --out) out=${2%/} ;;
        --steps) steps=$2 ;;
        --peers) peers=$2 ;;
        --limit) limit=$2 ;;
        --seconds) seconds=$2 ;;
        --jobs) at_once=$2 ;;
        --every) every=$2 ;;
        --barriers) barriers=$2 ;;
        --commit) commit=$2 ;;
      esac
      shift
      ;;
    *) die "Unknown option $1." "bench/gpu_all.sh --help" ;;
  esac
  shift
done
for step in ${steps//,/ }; do
  [[ ,$all_steps, == *,$step,* ]] || die "There is no step $step." "Of $all_steps."
done
for peer in ${peers//,/ }; do
  [[ ,$all_peers, == *,$peer,* ]] || die "There is no peer $peer." "Of $all_peers."
done
logs=$build/gpu_all/logs out=${out:-$build/gpu_all}
mkdir -p "$logs" "$out"

# The tests that compute-sanitizer runs: a program, and those of its tests that are small enough. One row a launch or a
# few; kernels for many rows are not reached, but for one.
reduced=(
  cuda_rows CudaRows.EveryLengthEveryDtype
  cuda_hidden CudaHidden.AFewOuterAxes:CudaHidden.AFewHiddenRows
  cuda_operations CudaOperations.StatesAndWhatFollowsFromThem:CudaOperations.Merges:CudaOperations.ShortOuterAxes
  cuda_ragged CudaRagged.RowsWithScales:CudaRagged.RowsWithOffsetsOutside
  cuda_listed CudaListed.RowsOverEachOther
  cuda_loss CudaLoss.GradientsOfManyRows
  cuda_masked_stay CudaMaskedStay.EdgesOfMemory
  cuda_odd CudaOdd.EdgesOfMemory
  cuda_consumers 'CudaConsumers.*OfTheList'
  cuda_shards CudaShards.PartialsAndStates
  cuda_streams CudaStreams.AWorkspaceIsUsedAndItsSizeChecked
)

# What the tools name although it is right, as docs/cuda.md tells (Tests): the kernels, whatever their types.
declare -A known=(
  [initcheck]='softmax_ring|softmax_cluster_guesses|softmax_cluster_stays|backward_cluster_stays'
  [synccheck]='softmax_across_tiles|topk_filter'
  [racecheck]='softmax_across_tiles|softmax_lengths_stay|softmax_cluster_guesses|fold_slots'
)

# --- what a step needs ------------------------------------------------------------------------------------------

has_gpu() { nvidia-smi -L 2>/dev/null | grep -q GPU; }
has_torch() { "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; }
sanitizer() { command -v compute-sanitizer || compgen -G '/usr/local/cuda*/bin/compute-sanitizer' | tail -n 1; }

# lacks STEP: what the step lacks here; empty if nothing.
lacks() {
  if $dry; then return; fi
  has_gpu || { echo 'nvidia-smi finds no GPU' && return; }
  case $1 in
    tests | limits) [[ -d $build/tests/cuda ]] || echo "$build/tests/cuda is not there: build with SOFTFOLD_TESTS=ON" ;;
    *check)
      if [[ ! -d $build/tests/cuda ]]; then
        echo "$build/tests/cuda is not there: build with SOFTFOLD_TESTS=ON"
      elif [[ -z $(sanitizer) ]]; then
        echo 'there is no compute-sanitizer (it comes with the CUDA toolkit)'
      fi
      ;;
    *)
      if [[ ! -e $build/src/libsoftfold.so ]]; then
        echo "$build/src/libsoftfold.so is not there"
      elif ! has_torch; then
        echo "$python has no torch that sees the GPU"
      fi
      ;;
  esac
}

# --- programs and their verdicts --------------------------------------------------------------------------------

running=0
# start LOG COMMAND...: behind the others, at most --jobs of them at a time; its status goes to LOG.status.
start() {
  local log=$1
  shift
  if $dry; then
    printf '  %s\n' "$*"
    return
  fi
  if ((running >= at_once)); then
    wait -n || true
    running=$((running - 1))
  fi
  rm -f "$log.status"
  { local status=0 && { timeout "$limit" "$@" >"$log" 2>&1 </dev/null || status=$?; } && echo "$status" >"$log.status"; } &
  running=$((running + 1))
}
finish_all() { wait && running=0; }

# number WORD LOG: of the line of GoogleTest's that counts such tests; it names those that failed instead.
number() { sed -n "s/^\[  $1 *\] \([0-9]*\) tests\{0,1\}[.,].*/\1/p" "$2" | head -n 1 | grep . || echo 0; }
failures() { grep -c '^\[  FAILED  \] [A-Za-z]' "$1" || true; }

# knows TOOL LOG: whether the tool names something, and nothing but what is known. (A kernel that synccheck stops has its
# test fail, too.)
knows() {
  local kernels=${known[$1]:-} named
  named=$(grep -E '^=+ +(at |(Error|Warning): Race reported)' "$2" || true)
  [[ -n $kernels && -n $named ]] && ! grep -qvE "::($kernels)<" <<<"$named" && ! grep -q 'Internal Sanitizer Error' "$2"
}

# judge LOG NAME [MUST]: one line about a program that has ended; with MUST one without a test is a failure.
judge() {
  local log=$1 name=$2 must=${3:-} status good bad left_out words
  if $dry; then return; fi
  status=$(cat "$log.status") good=$(number PASSED "$log") bad=$(failures "$log") left_out=$(number SKIPPED "$log")
  words=$(grep -E '^=+ .*SUMMARY' "$log" | tail -n 1 | sed 's/^=* //' || true)
  if grep -q 'Device not supported' "$log"; then
    skipped+=("$name: compute-sanitizer does not take this device")
    return
  fi
  passed=$((passed + good))
  if ((status != 0 && status != 124)) && knows "${name%% *}" "$log"; then
    skipped+=("$name: no verdict, the tool names what is known; $words")
  elif ((status == 0)) && ((good > 0)); then
    say "ok      $name: $good tests${words:+; $words}"
  elif ((status == 0 && left_out > 0)); then
    skipped+=("$name: its $left_out tests skip themselves, see $log")
  elif ((status == 0)) && [[ -z $must ]]; then
    skipped+=("$name: none of its tests is asked for")
  else
    failed=$((failed + (bad > 0 ? bad : 1)))
    ((status != 0)) || words='it has no such test'
    ((status != 124)) || words="stopped after $limit s, no verdict"
    if grep -q 'overflow of tracked cuda::barrier' "$log"; then words+='; more --barriers are needed'; fi
    note "FAILED  $name: $bad of its tests; ${words:-status $status} ($log)"
  fi
}

# --- steps ------------------------------------------------------------------------------------------------------

test_programs() {
  local program names=()
  for program in "$build"/tests/cuda/cuda_*; do
    [[ -f $program && -x $program && $program != */cuda_limits ]] || continue
    names+=("${program##*/}")
    start "$logs/${program##*/}.log" "$program" --gtest_brief=1 "${quick[@]}"
  done
  finish_all
  for program in "${names[@]}"; do judge "$logs/$program.log" "$program"; done
}

limits() {
  start "$logs/cuda_limits.log" "$build/tests/cuda/cuda_limits" --gtest_brief=1 "${quick[@]}"
  finish_all
  judge "$logs/cuda_limits.log" cuda_limits
}

# sanitize TOOL: the reduced grid. What racecheck does not follow in three kernels docs/cuda.md says: it leaves them out.
sanitize() {
  local tool=$1 options=(--tool "$1" --error-exitcode 9) i kernel
  case $tool in
    racecheck)
      options+=(--num-cuda-barriers "$barriers")
      for kernel in softmax_ring softmax_grid_ring topk_warp_rows; do options+=(--kernel-name-exclude "kns=$kernel"); done
      ;;
    synccheck) options+=(--num-cuda-barriers "$barriers") ;;
  esac
  for ((i = 0; i < ${#reduced[@]}; i += 2)); do
    start "$logs/$tool-${reduced[i]}.log" env "SOFTFOLD_TEST_STEP=$every" "$(sanitizer || echo compute-sanitizer)" \
      "${options[@]}" "$build/tests/cuda/${reduced[i]}" --gtest_brief=1 "--gtest_filter=${reduced[i + 1]}"
  done
  finish_all
  for ((i = 0; i < ${#reduced[@]}; i += 2)); do judge "$logs/$tool-${reduced[i]}.log" "$tool ${reduced[i]}" must; done
}

# of_peers NAME...: of the peers that are asked for, those named, with commas.
of_peers() {
  local name some=()
  for name in "$@"; do [[ ,$peers, != *,$name,* ]] || some+=("$name"); done
  (IFS=, && echo "${some[*]}")
}

# measure FILE SCRIPT PEERS ARGUMENT...: one benchmark, on the terminal and in its log.
measure() {
  local name=$1 log=$logs/$1.log status=0 command
  command=("$python" "bench/$2.py" --library "$build/src/libsoftfold.so" --out "$out/$1.jsonl" --commit "$commit"
    --limit "$limit" --peers "$3" "${resume[@]}" "${@:4}")
  if $dry; then
    printf '  %s\n' "${command[*]}"
    return
  fi
  PYTHONUNBUFFERED=1 "${command[@]}" 2>&1 </dev/null | tee "$log" || status=$?
  case $status in
    0) passed=$((passed + 1)) && say "ok      $name: $(wc -l <"$out/$name.jsonl") records in $out/$name.jsonl" ;;
    3) skipped+=("$name: not all of it within $limit s; the same with --resume goes on") ;;
    *) failed=$((failed + 1)) && note "FAILED  $name: status $status ($log)" ;;
  esac
}

take() {
  case $1 in
    tests) test_programs ;;
    limits) limits ;;
    *check) sanitize "$1" ;;
    rows) measure rows gpu_softmax "$(of_peers torch)" --seconds "$seconds" ;;
    softmax)
      measure softmax gpu_softmax "$(of_peers torch compile triton triton-online liger quack)" --seconds "$seconds" \
        --only softmax,long,few
      ;;
    consumers)
      measure consumers gpu_consumers "$(of_peers torch compile liger quack flashinfer)" --seconds "$seconds"
      ;;
    linear)
      measure linear_cross_entropy gpu_linear_cross_entropy "$(of_peers torch compile liger quack cce cce-exact)"
      ;;
  esac
}

for step in ${steps//,/ }; do
  heading "$step"
  before=$SECONDS reason=$(lacks "$step")
  if [[ -n $reason ]]; then
    skipped+=("$step: $reason")
    note "skipped: $reason"
    continue
  fi
  take "$step"
  say "$((SECONDS - before)) s"
done

heading "Result, commit ${commit:-unknown}"
if has_gpu; then say "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)"; fi
for reason in "${skipped[@]}"; do note "skipped: $reason"; done
say "finished in $SECONDS s; logs in $logs"
printf '%s\n' "$passed passed, $failed failed"
((failed == 0)) || exit 1
((passed > 0 || ${#skipped[@]} == 0)) || exit 77

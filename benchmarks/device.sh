#!/usr/bin/env bash
# Measure, in 12 minutes of a GPU, what no GPU has measured yet, the most valuable part first.
#
#   benchmarks/device.sh FOLDER [PART ...]
#   MODEL=SmolLM2-135M-Instruct.Q4_1.gguf BOOKS=books TORCH_PYTHON=TORCH/bin/python benchmarks/device.sh FOLDER
#   TINY=1 TORCH_PYTHON= benchmarks/device.sh FOLDER     # every part on a CPU, with toy sizes
#
# Run it from the repository's folder. FOLDER gets one log per part and the runs; after each part, ARCHIVE
# (default: FOLDER/results.tar.gz) gets what is worth keeping: the logs, the sweeps' tables and the fits.
# Call it again to go on: a part that has FOLDER/PART.log is skipped, and sweeps, fits and training go on
# where they were stopped. On another machine, put the archive's logs into FOLDER first. A part that fails
# or runs out of its time leaves PART.unfinished.log, and the next one starts; the status is then 1.
#
#   PYTHON        the Python with this package's dependencies (default: python)
#   TORCH_PYTHON  one with torch, transformers and CUDA, for the peer of the sweep (default: no peer)
#   MODEL, BOOKS  SmolLM2's GGUF file, and a folder with train/*.txt and test/*.txt, as results/README.md
#                 lists them; without them, the parts from `longppl` on are left out
#   LIMIT         seconds for everything (default: 720)
#
# On an H200, the first four parts took 345 s. The parts of SmolLM2 together need more than one call; those of
# fits and `lora` have not been run as a whole. A fit takes two to four minutes on an H100, so call them until all is done.
#
#   TEXTS         a folder with python/*.txt and prose/*.txt for fits-texts, as results/README.md lists them (default: BOOKS)
set -euo pipefail

# Name, seconds at most, and whether it has the GPU for itself. The others run four at a time: each has
# a fifth of the memory, and more of them have exceeded it.
PARTS='
kernels       150  alone
mfu-8k        120  alone
mfu-32k       120  alone
sweep-131k    150  alone
longppl       400  shared
needles-fit   400  shared
needles-maps  400  shared
ntk-s1        240  shared
maps-32k      300  shared
longppl-fit   200  alone
fits-only     230  shared
fits-without  230  shared
fits-per      230  shared
fits-steps    230  shared
fits-starts   230  shared
fits-far      230  shared
fits-texts    230  shared
lora          230  shared
'

FOLDER=${1:?the folder for logs and runs} LIMIT=${LIMIT:-720} PYTHON=${PYTHON:-python} TINY=${TINY:-}
RUNS=$FOLDER/runs ARCHIVE=${ARCHIVE:-$FOLDER/results.tar.gz}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1

window=8192 samples=20 on_cpu=() short=() shape=1b long_shape=1b-32k
if [ -n "$TINY" ]; then
  window=256 samples=2 on_cpu=(--on-cpu) short=(--rounds 1 --steps 1) shape=tiny long_shape=tiny
  MODEL=none BOOKS=$FOLDER/books
  if [ ! -e "$BOOKS" ]; then
    mkdir -p "$BOOKS"/{train,test}
    for page in docs/*.md; do cp "$page" "$BOOKS/test/$(basename "$page" .md).txt"; done
    mv "$BOOKS"/test/t*.txt "$BOOKS/train/"
  fi
fi

accelerator() { "$PYTHON" benchmarks/accelerator.py "${on_cpu[@]}" --models "$@" "${short[@]}"; }

# Correctness does not need the fastest programs, whose choice takes most of the compilation.
kernels() {
  XLA_FLAGS="${XLA_FLAGS:-} --xla_gpu_autotune_level=0" "$PYTHON" scripts/check_accelerator.py \
    "${on_cpu[@]}" ${TINY:+--length 128}
}
mfu-8k() { accelerator $shape --only training --rounds 3 --steps 5; }
mfu-32k() { accelerator $long_shape --only training --rounds 3 --steps 5; }
sweep-131k() {
  accelerator $long_shape --only sweeping --rounds 1 ${TORCH_PYTHON:+--torch-python "$TORCH_PYTHON"}
}

files="test: ['${BOOKS:-}/test/*.txt']"
texts="data={type: text, files: {$files}, cache_dir: $FOLDER/cache}"
both="data={type: text, files: {train: ['${BOOKS:-}/train/*.txt'], $files}, cache_dir: $FOLDER/cache}"

published() { # imported once; what is there already is not done again, here and below
  flock "$FOLDER/import.lock" "$PYTHON" "${import[@]}" name=smollm2 "runs_dir=$RUNS"
}
further() { # METHOD SEED [key=value ...]
  published
  "$PYTHON" -m rope_jax train configs/smollm2.yaml "name=smollm2-$1-s$2" "seed=$2" "runs_dir=$RUNS" "init_from=$RUNS/smollm2" \
    "$both" "stages.0.seq_len=$((2 * window))" "${steps[@]}" "${@:3}"
}
sweep() { # RUN SWEEP NAME LENGTHS SCALINGS [key=value ...]
  "$PYTHON" -m rope_jax sweep "$RUNS/$1" --sweep "configs/sweeps/$2.yaml" "$texts" "targets=$((window / 8))" \
    "name=$3" "lengths=[$4]" "scalings=[$5]" "${@:6}"
}
far_fit() { # [key=value ...]: what is fitted already is not fitted again
  published
  "$PYTHON" -m rope_jax fit "$RUNS/smollm2" --fit configs/fits/smollm2-far.yaml name=far-s0 "length=$((2 * window))" \
    "batch_tokens=$((2 * window))" "${fit[@]}" \
    "data={type: text, files: ['$BOOKS/train/*.txt'], cache_dir: $FOLDER/cache}" "$@"
}
fits() { # NAME: a sweep of the fits of far keys that are called NAME-…, each at its window and beyond
  local file list=trained
  for file in "$RUNS"/smollm2/fits/"$1"-*/strategy.json; do
    list+=", {type: $file, name: $(basename "$(dirname "$file")")}"
  done
  sweep smollm2 smollm2-twice "$1" "$window, $((2 * window))" "$list" "targets=$((window / 2))"
}
key_tokens() {
  further yarn 0
  "$PYTHON" -m rope_jax key-tokens "$RUNS/smollm2-yarn-s0" name=far "short=$window" "stride=$((window / 2))" \
    max_documents=10 "$texts" "${keys[@]}"
}
longppl_of() { # NAME SCALINGS
  sweep smollm2 smollm2-twice "$1" "$window, $((2 * window))" "$2" \
    "tasks=[{task: longppl, samples: 160, mask: $(ls "$FOLDER"/cache/*/key_tokens/far.json)}]"
}
needles_of() { # NAME SCALINGS; the depths at which the model finds anything, but not always
  local asked="samples: $samples, depths: [0.25, 0.5, 0.75]"
  sweep smollm2 smollm2-tasks "$1" "$((2 * window))" "$2" "tasks=[{task: passkey_text, $asked}, {task: needle, $asked}]"
}
import=(-m rope_jax import "${MODEL:-}" dtype=bfloat16 attention=cudnn) steps=() fit=() keys=()
if [ -n "$TINY" ]; then
  import=(-m rope_jax train configs/bpe.yaml tokenizer.vocab_size=512 "$both" stages.0.steps=2 "stages.0.seq_len=$window"
    stages.0.batch_size=1 optim.warmup_steps=1)
  steps=(stages.0.steps=2 optim.warmup_steps=1 validation.every_steps=2)
  fit=(steps=2 warmup_steps=1 check_every=1) keys=(alpha=1e-6 beta=-20)
fi
far="{type: $RUNS/smollm2/fits/far-s0/strategy.json, name: far-s0}"
map() { echo "{type: none, map: {type: $1}, name: $1}"; }
with_logn() { echo "{type: none, map: {type: $1}, query_scale: {type: logn}, name: $1-logn}"; }

longppl() {
  key_tokens
  longppl_of longppl "trained, {type: yarn, factor: auto}, $(map leaky_rerope), $(map self_extend)"
}
needles-fit() {
  far_fit
  needles_of needles-fit "$far"
}
needles-maps() {
  published
  needles_of needles-maps "$(map leaky_rerope), $(map self_extend)"
}
ntk-s1() {
  further ntk 1 'stages.0.scaling={type: ntk, factor: 2}'
  sweep smollm2-ntk-s1 smollm2 smollm2 "$((window / 4)), $((window / 2)), $window, $((window * 3 / 2)), \
    $((2 * window)), $((4 * window))" trained
}
maps-32k() {
  published
  sweep smollm2 smollm2 maps-32k "$window, $((4 * window))" "$(map self_extend), $(map dual_chunk), $(map string), \
    $(with_logn rerope), $(with_logn leaky_rerope)"
}
longppl-fit() {
  key_tokens
  far_fit
  longppl_of longppl-fit "$far"
}
kinds="frequencies attention_factor query_scale far_frequencies far_phase far_amplitude bias"
fits-only() {
  for kind in $kinds; do far_fit "name=only-$kind" "learn=[$kind]"; done
  fits only
}
fits-without() {
  for kind in $kinds; do
    others=${kinds/$kind/}
    far_fit "name=without-$kind" "learn=[$(echo $others | tr ' ' ,)]"
  done
  far_fit name=without-nothing "learn=[${kinds// /,}]"
  fits without
}
fits-per() {
  for per in model layer; do far_fit "name=per-$per" "per=$per"; done
  fits per
}
fits-steps() {
  for steps in 10 160; do far_fit "name=steps-$steps" "steps=$steps" "${fit[@]}"; done
  fits steps
}
fits-starts() {
  for start in leaky_rerope rerope; do far_fit "name=start-$start" "start=$(map $start)" 'learn=[frequencies,attention_factor,far_phase,far_amplitude]'; done
  far_fit name=start-yarn 'start={type: yarn, factor: 2}' 'learn=[frequencies,attention_factor]'
  far_fit name=start-longrope 'start={type: yarn, factor: 2}' learn=[frequencies] per=model
  fits start
}
fits-far() { # fitted at four windows, and what was fitted at two
  far_fit name=far-s0
  far_fit name=far-x4 "length=$((4 * window))" "batch_tokens=$((4 * window))" "${fit[@]}"
  sweep smollm2 smollm2-twice far-x4 "$window, $((2 * window)), $((4 * window))" \
    "trained, $far, {type: $RUNS/smollm2/fits/far-x4/strategy.json, name: far-x4}" "targets=$((window / 2))"
}
fits-texts() { # fitted on novels, read elsewhere, and fitted there
  far_fit
  for kind in python prose; do
    texts="data={type: text, files: {test: ['${TEXTS:-$BOOKS/test}/$kind/*.txt']}, cache_dir: $FOLDER/cache}"
    [ -z "$TINY" ] || texts=$both
    sweep smollm2 smollm2-twice "$kind" "$window, $((2 * window))" "trained, {type: yarn, factor: auto}, $(with_logn leaky_rerope), $far" \
      "targets=$((window / 2))"
  done
}
lora() { # 100 steps as in LongLoRA, at twice the window and, as the control, at the window
  local recipe=('optim.lora={rank: 8, alpha: 16}' 'optim.trainable=[norms, embeddings]' optim.learning_rate=0.0003)
  further lora 0 "${recipe[@]}"
  further lora-short 0 "${recipe[@]}" "stages.0.seq_len=$window" stages.0.batch_size=2 'stages.0.scaling={type: none}'
  for run in smollm2-lora-s0 smollm2-lora-short-s0; do
    sweep $run smollm2-twice lora "$window, $((2 * window))" trained "targets=$((window / 2))"
  done
}

if [ "${2:-}" = --part ]; then
  trap 'exit 143' TERM # only after what it runs, which saves its work: else that would go on unseen
  "$3"
  exit
fi

run() { # NAME SECONDS SHARE_OF_MEMORY
  local part=$1 left=$((LIMIT - SECONDS)) began=$SECONDS status=0
  local log=$FOLDER/$part.unfinished.log limit=$(($2 < left ? $2 : left))
  if ((limit < 1)); then
    echo "$part: not started, no time is left"
    return
  fi
  XLA_PYTHON_CLIENT_MEM_FRACTION=$3 timeout --kill-after=10 $limit bash "$0" "$FOLDER" --part "$part" > "$log" 2>&1 &
  trap "kill $!" TERM
  wait $! || status=$?
  tail -n 20 "$log"
  echo "$part: status $status after $((SECONDS - began)) of $limit s"
  ((status)) || mv "$log" "$FOLDER/$part.log"
  exec 9> "$FOLDER/archive.lock"
  flock 9
  cd "$FOLDER"
  find . -type f ! -path '*/.*/*' \( -name '*.log' -o -path '*/evals/*' -o -path '*/fits/*' -o -path '*/key_tokens/*' \) |
    tar czf "$part.tar.gz" --warning=no-file-changed -T - || true # of another part, which writes to it
  cd "$OLDPWD"
  mv "$FOLDER/$part.tar.gz" "$ARCHIVE"
  exec 9>&-
}

for part in "${@:2}"; do
  if [[ $PARTS != *$'\n'"$part "* ]]; then
    echo "$part: no such part; the parts are:$PARTS" >&2
    exit 2
  fi
done
mkdir -p "$FOLDER"
trap 'kill $(jobs -p); wait; exit 143' INT TERM
status=0 chosen=()
while read -r part seconds how; do
  if [[ $part == longppl && (-z ${MODEL:-} || -z ${BOOKS:-}) ]]; then
    echo "SmolLM2 is not measured: MODEL and BOOKS are not set"
    [ $# -eq 1 ] || status=1
    break
  elif [[ $# -gt 1 && " ${*:2} " != *" $part "* ]]; then
    continue
  fi
  chosen+=("$part")
  [ -z "$TINY" ] || seconds=$LIMIT
  if [ -e "$FOLDER/$part.log" ]; then
    echo "$part: done before"
  elif [ "$how" = alone ]; then
    wait
    run "$part" "$seconds" 0.92 &
    wait
  else
    while (($(jobs -rp | wc -l) >= 4)); do wait -n || true; done
    run "$part" "$seconds" 0.22 &
  fi
done <<< "${PARTS:1:-1}"
wait
for part in "${chosen[@]}"; do
  [ -e "$FOLDER/$part.log" ] || status=1
done
exit $status

#!/usr/bin/env bash
# What is to be measured on a GPU, in stages meant for ten minutes each, in the activated virtual environment;
# tables go to results/gpu/, or to another folder: OUT_DIR=my_tables bash launch/measure_gpu.sh
#   bash launch/measure_gpu.sh                 all of them
#   bash launch/measure_gpu.sh kernels         every kernel against its oracle, then its speed
#   bash launch/measure_gpu.sh small           training steps and decoding at GPT-2 small's width
#   bash launch/measure_gpu.sh xl              training steps at GPT-2 xl's width
# --batch_size, --repetitions, --seconds and --dtype after the stage go to bench.py. A table that exists is not
# measured again: so the same command goes on where it was interrupted.
set -euo pipefail
cd "$(dirname "$0")/.."
stage=${1:-all}
shift || true
case $stage in
    all | kernels | small | xl) ;;
    -*) echo "name the stage before $stage: kernels, small, xl or all" >&2; exit 2 ;;
    *) echo "no stage $stage: kernels, small, xl or all" >&2; exit 2 ;;
esac
for option in "$@"; do
    case $option in
        --batch_size=* | --repetitions=* | --seconds=* | --dtype=*) ;;
        *) echo "$option is not for all of bench.py's modes: --batch_size, --repetitions, --seconds and --dtype are" >&2; exit 2 ;;
    esac
done
python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null ||
    { echo "python sees no torch with a GPU: activate the virtual environment, on a machine that has one" >&2; exit 2; }
out=${OUT_DIR:-results/gpu}
mkdir -p "$out"
size=config/size/small.py

missing() { # FILE: whether it is still to be measured
    [[ ! -e $out/$1 ]] || { echo "$out/$1 is there: remove it to measure it again" >&2; return 1; }
}

table() { # FILE COMMAND...: the command and what it prints, kept whole or not at all
    local file=$out/$1
    shift
    if { printf '    %s\n\n' "$*" && "$@"; } | tee "$file.part"; then
        mv "$file.part" "$file"
    else
        rm -f "$file.part"
        echo "no $file: the command above failed" >&2
        exit 1
    fi
}

if [[ $stage == all || $stage == kernels ]] && missing kernels.md; then
    python -c 'import pytest' 2>/dev/null ||
        { echo "the kernels are tested first: pip install -r requirements-test.txt" >&2; exit 2; }
    python -m pytest tests/kernels
    table kernels.md python bench.py --mode=ops --batch_size=8 --repetitions=5 --seconds=0.2 "$@"
fi
if [[ $stage == all || $stage == small ]] && missing small.md; then
    table small.md python bench.py config/gpt2.py config/cofrgenet_f.py+$size config/cofrgenet_a.py+$size \
        config/cofrgenet.py+$size --batch_size=16 --repetitions=5 --seconds=0.3 "$@"
fi
if [[ $stage == all || $stage == small ]] && missing small_decoding.md; then
    table small_decoding.md python bench.py config/gpt2.py config/cofrgenet_f.py+$size \
        config/cofrgenet_a.py+$size config/cofrgenet.py+$size \
        config/cofrgenet.py+$size+config/ablate/ladder_form.py \
        --mode=infer --batch_size=16 --repetitions=5 --seconds=0.3 "$@"
fi
if [[ $stage == all || $stage == xl ]] && missing xl.md; then
    table xl.md python bench.py config/gpt2_xl.py config/cofrgenet_f.py config/cofrgenet_a.py \
        config/cofrgenet.py --batch_size=8 --parts=False --repetitions=5 --seconds=0.5 "$@"
fi

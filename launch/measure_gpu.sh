#!/usr/bin/env bash
# What is to be measured on a GPU, in stages of less than ten minutes each, in the activated virtual
# environment; tables go to results/gpu/, or to another folder: OUT_DIR=my_tables bash launch/measure_gpu.sh
#   bash launch/measure_gpu.sh                 all of them
#   bash launch/measure_gpu.sh kernels         every kernel against its oracle, then its speed
#   bash launch/measure_gpu.sh small           training steps and decoding at GPT-2 small's width
#   bash launch/measure_gpu.sh xl              training steps at GPT-2 xl's width
# What follows the stage goes to bench.py: bash launch/measure_gpu.sh small --batch_size=32
set -euo pipefail
cd "$(dirname "$0")/.."
stage=${1:-all}
shift || true
case $stage in
    all | kernels | small | xl) ;;
    -*) echo "name the stage before $stage: kernels, small, xl or all" >&2; exit 2 ;;
    *) echo "no stage $stage: kernels, small, xl or all" >&2; exit 2 ;;
esac
python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null ||
    { echo "python sees no torch with a GPU: activate the virtual environment, on a machine that has one" >&2; exit 2; }
out=${OUT_DIR:-results/gpu}
mkdir -p "$out"
size=config/size/small.py

table() { # FILE COMMAND...: the command and what it prints, kept whole or not at all
    local file=$1
    shift
    if [[ -e $file ]]; then
        echo "$file exists already, and is not overwritten: choose another OUT_DIR" >&2
        exit 2
    fi
    if { printf '    %s\n\n' "$*" && "$@"; } | tee "$file.part"; then
        mv "$file.part" "$file"
    else
        rm -f "$file.part"
        echo "no $file: the command above failed" >&2
        exit 1
    fi
}

if [[ $stage == all || $stage == kernels ]]; then
    python -m pytest tests/kernels
    table "$out/kernels.md" python bench.py --mode=ops --batch_size=8 --repetitions=5 --seconds=0.2 "$@"
fi
if [[ $stage == all || $stage == small ]]; then
    table "$out/small.md" python bench.py config/gpt2.py config/cofrgenet_f.py+$size config/cofrgenet_a.py+$size \
        config/cofrgenet.py+$size --batch_size=16 --repetitions=5 --seconds=0.3 "$@"
    table "$out/small_decoding.md" python bench.py config/gpt2.py config/cofrgenet_f.py+$size \
        config/cofrgenet_a.py+$size config/cofrgenet.py+$size \
        config/cofrgenet.py+$size+config/ablate/ladder_form.py \
        --mode=infer --batch_size=16 --repetitions=5 --seconds=0.3 "$@"
fi
if [[ $stage == all || $stage == xl ]]; then
    table "$out/xl.md" python bench.py config/gpt2_xl.py config/cofrgenet_f.py config/cofrgenet_a.py \
        config/cofrgenet.py --batch_size=8 --parts=False --repetitions=5 --seconds=0.5 "$@"
fi

#!/bin/bash
# Training steps at GPT2-xl's size on one GPU, in nine minutes: before and after V z, clipping and the gradient of
# our attention's scores were fused, and with settings of the compiler that only a GPU can judge.
#   source .venv/bin/activate
#   git worktree add ../old 11a1bc1
#   launch/measure_fusions.sh ../old out/fusions
# The same command goes on where it stopped. Further keys are those of bench.py. A trial without a GPU:
#   launch/measure_fusions.sh ../old out/trial --device=cpu --compile=False --n_layer=1 --n_embd=64 --n_head=4 \
#       --block_size=32 --batch_size=2 --repetitions=2 --seconds=0.001
set -uo pipefail
trap 'exit 130' INT
old=$(realpath "${1:?the folder of the older commit}") out=$(realpath -m "${2:?a folder for the results}")
shift 2
[ -f "$old/bench.py" ] || { echo "measure_fusions.sh: there is no bench.py in $old" >&2; exit 2; }
command -v python > /dev/null || { echo "measure_fusions.sh: activate .venv first" >&2; exit 2; }
mkdir -p "$out"
models="config/gpt2_xl.py config/cofrgenet_f.py config/cofrgenet.py config/ours/ladder_full.py" failed=0

measure() {  # a name for the results, minutes, keys
    local name=$1 minutes=$2
    shift 2
    printf '\n=== %s\n' "$name"
    # shellcheck disable=SC2086
    python bench.py $models --batch_size=8 --repetitions=5 --seconds=0.3 --parts=False --turns=False \
        --compile_gb=10 --minutes="$minutes" --json="$out/$name.jsonl" "$@" || failed=1
}

cd "$old" && measure old 1.8 "$@"
cd "$OLDPWD" && measure new 1.8 "$@"
TORCHINDUCTOR_COORDINATE_DESCENT_TUNING=1 measure coordinate_descent 1.8 "$@"
TORCHINDUCTOR_MIX_ORDER_REDUCTION=0 measure no_mix_order_reduction 1.8 "$@"
models=config/gpt2_xl.py
measure four_batches 0.8 --gradient_accumulation_steps=4 "$@"
exit $failed

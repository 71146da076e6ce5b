#!/bin/bash
# Train on several nodes under Slurm; from the root of the repository, after `make setup`:
#   sbatch --nodes=2 --gpus-per-node=8 launch/slurm.sh config/cofrgenet_f.py
# Two minutes before its time is up, and when it is cancelled, the run writes a checkpoint; submitted again with
# the same arguments, or requeued, it goes on.
#SBATCH --job-name=cofrgenet
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
source .venv/bin/activate
# the step at hand, an evaluation and the checkpoint must fit into what torchrun and Slurm wait
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=110
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-}"  # srun does not take it over by itself
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
exec srun torchrun \
    --nnodes="$SLURM_JOB_NUM_NODES" --nproc_per_node="${SLURM_GPUS_ON_NODE:?ask for GPUs: --gpus-per-node=8}" \
    --rdzv_backend=c10d --rdzv_endpoint="$head:29500" --rdzv_id="$SLURM_JOB_ID" \
    train.py "$@" --resume=True

#!/bin/bash
# Train on several nodes under Slurm; from the root of the repository, after `make setup`:
#   sbatch --nodes=2 --gpus-per-node=8 launch/slurm.sh config/cofrgenet_f.py
# Two minutes before its time is up, and when it is cancelled, the run writes a checkpoint; submitted again with
# the same arguments, or requeued, it goes on.
# When a node, a GPU or a process dies, torchrun starts the ranks of the nodes that are left again, and the run
# goes on from its last checkpoint. Their number must divide gradient_accumulation_steps. The first node holds
# the ranks together: if it dies, cancel the job and submit it again.
#SBATCH --job-name=cofrgenet
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --no-kill
#SBATCH --open-mode=append
set -euo pipefail
source .venv/bin/activate
# the step at hand, an evaluation and the checkpoint must fit into what torchrun and Slurm wait
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=110
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-}"  # srun does not take it over by itself
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# --no-kill, --kill-on-bad-exit=0, --wait=0: Slurm lets the other nodes go on when one has failed
# last_call_timeout: seconds that torchrun waits for further nodes, at the start and after a failure
exec srun --no-kill --kill-on-bad-exit=0 --wait=0 torchrun --max_restarts=3 \
    --nnodes="1:$SLURM_JOB_NUM_NODES" --nproc_per_node="${SLURM_GPUS_ON_NODE:?ask for GPUs: --gpus-per-node=8}" \
    --rdzv_backend=c10d --rdzv_endpoint="$head:29500" --rdzv_id="$SLURM_JOB_ID" --rdzv_conf=last_call_timeout=60 \
    train.py "$@" --resume=True

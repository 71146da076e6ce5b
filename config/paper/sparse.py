# The paper's baseline Sparse Attn: causal BigBird with g = 1 and w = 3.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/paper/sparse.py        (two nodes: launch/slurm.sh)
#   python train.py config/paper/sparse.py --dry_run=True              (what it takes, without a GPU)
# The paper chooses r by a size which "reflects the sparsity level or the number of non-zeros" and does not
# print it. Sparsity has no parameters; but the dense model's attention weights times the share of pairs of
# tokens that r = 3 leaves, 0.286 with blocks of 64, would make it 1.21B. So r = 3 here, and blocks of 64.
# What to expect: 1,556,840,000 parameters. Published: 1.21B. Nobody has run it to the end here.
out_dir = "out/paper_sparse"
dataset = "data/openwebtext/gpt2"

n_layer = 48
n_head = 25
n_embd = 1600
block_size = 1024
attention = "bigbird"
bigbird_block = 64
bigbird_global = 1
bigbird_window = 3
bigbird_random = 3

# 491,520 tokens a step, nanoGPT's number; 96 micro-batches suit 1 to 4, 6, 8, 12, 16 and 32 ranks
batch_size = 5
gradient_accumulation_steps = 96
max_iters = 600_000
learning_rate = 6e-4
min_lr = 6e-5
warmup_iters = 2000
weight_decay = 0.1

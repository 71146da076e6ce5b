# The paper's baseline Sparse Attn: causal BigBird with g = 1 and w = 3.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/paper/sparse.py        (two nodes: launch/slurm.sh)
#   python train.py config/paper/sparse.py --dry_run=True              (what it takes, without a GPU)
# The paper does not print r. It chooses r by a size which "reflects the sparsity level or the number of
# non-zeros", although sparsity removes no parameters. With r = 3 and blocks of 64, a share of 0.286 of the
# pairs of tokens is left. The dense model's attention parameters times this share would give 1.21B, so we
# take r = 3 and blocks of 64. Random blocks are drawn among those of the past; the paper masks the future
# of BigBird's own pattern, which loses about half of them.
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

# 491,520 tokens per step, as in nanoGPT; 96 can be divided among 1 to 4, 6, 8, 12, 16 and 32 ranks
batch_size = 5
gradient_accumulation_steps = 96
max_iters = 600_000
learning_rate = 6e-4
min_lr = 6e-5
warmup_iters = 2000
weight_decay = 0.1

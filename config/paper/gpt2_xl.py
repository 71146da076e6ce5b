# The paper's dense baseline: GPT2-xl with nanoGPT's recipe.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/paper/gpt2_xl.py        (two nodes: launch/slurm.sh)
#   python train.py config/paper/gpt2_xl.py --dry_run=True              (what it takes, without a GPU)
# The learning rate 6e-4 is nanoGPT's for 124M parameters and high for 1.5B. config/gpt2_xl.py uses GPT-3's
# 2e-4 instead.
# What to expect: 1,556,840,000 parameters. Published: 1.5B. Nobody has run it to the end here.
out_dir = "out/paper_gpt2_xl"
dataset = "data/openwebtext/gpt2"

n_layer = 48
n_head = 25
n_embd = 1600
block_size = 1024

# 491,520 tokens per step, as in nanoGPT; 96 can be divided among 1 to 4, 6, 8, 12, 16 and 32 ranks
batch_size = 5
gradient_accumulation_steps = 96
max_iters = 600_000
learning_rate = 6e-4
min_lr = 6e-5
warmup_iters = 2000
weight_decay = 0.1

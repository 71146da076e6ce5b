# The paper's baseline Synthesizer-D: the Dense Synthesizer as attention, with a lower triangular mask.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/paper/synthesizer_d.py        (two nodes: launch/slurm.sh)
#   python train.py config/paper/synthesizer_d.py --dry_run=True              (what it takes, without a GPU)
# The paper gives a size and the mask, nothing else. That size leaves no room for an output projection. With
# 25 heads, as in the dense model, it is the parameter count without the embedding.
# What to expect: 1,273,064,000 parameters, 1,192,577,600 without the embedding. Published: 1.2B.
# Nobody has run it to the end here.
out_dir = "out/paper_synthesizer_d"
dataset = "data/openwebtext/gpt2"

n_layer = 48
n_head = 25
n_embd = 1600
block_size = 1024
attention = "synthesizer"
synthesizer_proj = False

# 491,520 tokens per step, as in nanoGPT; 96 can be divided among 1 to 4, 6, 8, 12, 16 and 32 ranks
batch_size = 5
gradient_accumulation_steps = 96
max_iters = 600_000
learning_rate = 6e-4
min_lr = 6e-5
warmup_iters = 2000
weight_decay = 0.1

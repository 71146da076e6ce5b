# The ICLR version's CoFrGeNet: feed-forward layers are products of two ensembles.
# Attention is CAttnM.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/paper/iclr_cofrgenet.py
# All else as in config/paper/cofrgenet.py, which has the arXiv version's gated ensemble.
# The collapsed linear parts are p x p, which the ICLR version's Table 1 leaves out.
# What to expect: 464,704,064 parameters. Published: 798M.
out_dir = "out/paper_iclr_cofrgenet"
dataset = "data/openwebtext/gpt2"

n_layer = 48
n_head = 25
n_embd = 1600
block_size = 1024
attention = "cattn_m"
ffn = "cffn_product"
cf_ladders = 7
cf_depth = 7
cf_pole = "clamp"
cf_eps = 0.01
cf_init = "nanogpt"
cf_eval_clip = True

# 491,520 tokens a step, nanoGPT's number; 96 micro-batches suit 1 to 4, 6, 8, 12, 16 and 32 ranks
batch_size = 5
gradient_accumulation_steps = 96
max_iters = 600_000
learning_rate = 6e-4
min_lr = 6e-5
warmup_iters = 2000
weight_decay = 0.1
decay_ladders = True
dyadic = True

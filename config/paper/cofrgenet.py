# The paper's CoFrGeNet: CAttnM for attention and the gated Cffn for feed-forward.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/paper/cofrgenet.py        (two nodes: launch/slurm.sh)
#   python train.py config/paper/cofrgenet.py --dry_run=True              (what it takes, without a GPU)
# To the letter: eps = 0.01, the clamp as printed with equation 9 as gradient, ranges of training as a clip
# in evaluation, the dyadic schedule, weight decay on all matrices, N(0, 0.02) without biases as in nanoGPT.
# The paper tries 1, 3, 5 and 7 ladders and depths and does not say which it reports: here the largest.
# What to expect: 459,865,664 parameters. Published: 798M, which no structure
# that we tried gives together with the other two.
out_dir = "out/paper_cofrgenet"
dataset = "data/openwebtext/gpt2"

n_layer = 48
n_head = 25
n_embd = 1600
block_size = 1024
attention = "cattn_m"
ffn = "cffn_gated"
cffn_gate = "self"
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

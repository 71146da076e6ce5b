# A CoFrGeNet with the published number of parameters: a guess, made for that number alone.
#   torchrun --nproc_per_node=8 train.py config/paper/count_matched.py
# Four p x p matrices for feed-forward, as in config/paper/count_matched_f.py, and CAttnM with 25 heads, as
# in count_matched_a.py, but larger ensembles: no single size of theirs gives all three published numbers.
# At another size it needs heads that divide the width: config/size/tiny.py --cattn_heads=2, say.
# What to expect: 799,899,200 parameters. Published: 798M.
out_dir = "out/paper_count_matched"
dataset = "data/openwebtext/gpt2"

n_layer = 48
n_head = 25
n_embd = 1600
block_size = 1024
attention = "cattn_m"
cattn_heads = 25
ffn = "cffn_gated"
cffn_gate = "glu_collapsed"
cffn_proj = True
cf_ladders = 6
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

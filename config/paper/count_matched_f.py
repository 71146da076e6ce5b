# A CoFrGeNet-F with the published number of parameters: a guess, made for that number alone.
#   torchrun --nproc_per_node=8 train.py config/paper/count_matched_f.py
# Gate, second factor, linear part and output are p x p matrices each. With one ladder of depth 1, and the
# embedding left out, that is the paper's 985M; its Table 1 (config/paper/cofrgenet_f.py) gives another.
# What to expect: 1,065,473,600 parameters, 984,987,200 without the embedding. Published: 985M.
out_dir = "out/paper_count_matched_f"
dataset = "data/openwebtext/gpt2"

n_layer = 48
n_head = 25
n_embd = 1600
block_size = 1024
ffn = "cffn_gated"
cffn_gate = "glu_collapsed"
cffn_proj = True
cf_ladders = 1
cf_depth = 1
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

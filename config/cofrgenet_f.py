# The papers' CoFrGeNet-F (arXiv version) at the size of GPT2-xl: feed-forward layers are ladders.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/cofrgenet_f.py
#   torchrun --nproc_per_node=8 train.py config/cofrgenet_f.py config/size/small.py --out_dir=out/small
# Reading: y = U h + V z(h), h = sigmoid(G x) * x, equation 8 on the gated input. Its 2 p^2 + L p (d + 1)
# are Table 1's; intercepts, L d + p a layer, are not counted there.
# Departs from print in one thing, which config/ablate/as_printed.py on top puts back: denominators are
# kept positive. Clamped at 0.01 they fail where N(0, 0.02) spreads them as at this width
# (results/trainability/paper.md).
# Not in print: where intercepts start (here at 1), how many ladders and how deep (1, 3, 5 or 7; here 7).
# What to expect: 823,939,952 parameters, 0.57 of the dense FLOPs. Published: 985M. Nobody has run it to
# the end here.
out_dir = "out/cofrgenet_f"
dataset = "data/openwebtext/gpt2"

n_layer = 48
n_head = 25
n_embd = 1600
block_size = 1024
ffn = "cffn_gated"
cffn_gate = "self"
cf_ladders = 7
cf_depth = 7
cf_init = "nanogpt"
cf_linear_intercept = True
cf_eval_clip = True

# 491,520 tokens a step, nanoGPT's number; 48 micro-batches suit 16 ranks
batch_size = 10
gradient_accumulation_steps = 48
max_iters = 600_000
learning_rate = 6e-4
min_lr = 6e-5
warmup_iters = 2000
weight_decay = 0.1
decay_ladders = True
dyadic = True

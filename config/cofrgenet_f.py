# The papers' CoFrGeNet-F (arXiv version) at the size of GPT2-xl: feed-forward layers are the gated Cffn.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/cofrgenet_f.py
#   torchrun --nproc_per_node=8 train.py config/cofrgenet_f.py config/size/small.py --out_dir=out/small
# Our reading: y = U h + V z(h), h = sigmoid(G x) * x, which is equation 8 on the gated input. It has
# the 2 p^2 + L p (d + 1) parameters per layer of Table 1, and L d + p intercepts, which Table 1 does not
# count.
# A departure from print: denominators are kept positive. Clamped at 0.01 as printed, training fails when
# N(0, 0.02) spreads the denominators as widely as at this width (results/trainability/paper.md). The
# overlay config/ablate/as_printed.py restores the clamp.
# The papers do not say where intercepts start (here at 1). They try 1, 3, 5 and 7 ladders and depths and do
# not say which of them this model has (here 7 ladders of depth 7).
# Depth counts a_1 to a_d, as section 2 of the paper does. Section 4.1's example and Table 1's CAttnU count
# w_0 too: the overlay config/ablate/depth_with_w0.py.
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

# 491,520 tokens per step, as in nanoGPT; 48 micro-batches can be divided among 16 ranks
batch_size = 10
gradient_accumulation_steps = 48
max_iters = 600_000
learning_rate = 6e-4
min_lr = 6e-5
warmup_iters = 2000
weight_decay = 0.1
decay_ladders = True
dyadic = True

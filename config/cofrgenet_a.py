# The papers' CoFrGeNet-A (arXiv version) at the size of GPT2-xl: attention is CAttnM.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/cofrgenet_a.py
#   torchrun --nproc_per_node=8 train.py config/cofrgenet_a.py config/size/small.py --out_dir=out/small
# Our reading: scores S = U x + V z, which is equation 8 collapsed as in section 4.2, with
# U [block_size, p]. Table 1 counts L (p + l) + p^2 parameters per layer. This model has l p + L (d - 1) p
# more per layer, and the intercepts. The other reading is F [L, l] of Figure 2: --cattn_scores=rank.
# A departure from print: denominators are kept positive. Clamped at 0.01 as printed, the model trains
# worse and with spikes, already at width 128 (results/trainability/paper.md). The overlay
# config/ablate/as_printed.py restores the clamp.
# The papers do not say where intercepts start (here at 1). They try 1, 3, 5 and 7 ladders and depths and do
# not say which of them this model has (here 7 ladders of depth 7).
# Depth counts a_1 to a_d, as section 2 of the paper does. Section 4.1's example and Table 1's CAttnU count
# w_0 too: the overlay config/ablate/depth_with_w0.py.
# What to expect: 1,271,001,968 parameters, 0.79 of the dense FLOPs. Published: 1.21B. Nobody has run it
# to the end here.
out_dir = "out/cofrgenet_a"
dataset = "data/openwebtext/gpt2"

n_layer = 48
n_head = 25
n_embd = 1600
block_size = 1024
attention = "cattn_m"
cattn_scores = "collapsed"
cattn_strict = True
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

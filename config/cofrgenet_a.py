# The papers' CoFrGeNet-A (arXiv version) at the size of GPT2-xl: attention is CAttnM.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/cofrgenet_a.py
#   torchrun --nproc_per_node=8 train.py config/cofrgenet_a.py config/size/small.py --out_dir=out/small
# Reading: scores S = U x + V z, equation 8 collapsed as section 4.2 says, U [block_size, p]. Table 1
# counts L (p + l) + p^2; this is l p + L (d - 1) p more a layer, and intercepts. Figure 2's F, L x l, is
# the other reading: --cattn_scores=rank.
# Departs from print in one thing, which config/ablate/as_printed.py on top puts back: denominators are
# kept positive. Clamped at 0.01 they train worse, with spikes, at width 128 already
# (results/trainability/paper.md).
# Not in print: where intercepts start (here at 1), how many ladders and how deep (1, 3, 5 or 7; here 7).
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

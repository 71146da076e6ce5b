# The papers' CoFrGeNet-A at the size of Llama-3.2-3B: attention is CAttnM.
#   python data/fineweb_edu/prepare.py
#   torchrun --nproc_per_node=8 train.py config/llama_3b_cofrgenet_a.py    (several nodes: launch/slurm.sh)
#   python train.py config/llama_3b_cofrgenet_a.py --dry_run=True    (what it takes)
# Our reading: scores S = U x + V z, which is equation 8 collapsed as in section 4.2, with
# U [block_size, p]. Table 1 counts L (p + l) + p^2 parameters per layer. This model has l p + L (d - 1) p
# more per layer, and the intercepts. The other reading is F [L, l] of Figure 2: --cattn_scores=rank.
# One departure from print: denominators are kept positive. Clamped at 0.01 as printed, the model trains
# worse and with spikes, already at width 128 (results/trainability/paper.md). The overlay
# config/ablate/as_printed.py restores the clamp.
# The papers do not say where intercepts start (here at 1). They try 1, 3, 5 and 7 ladders and depths and do
# not say which of them this model has (here 7 ladders of depth 7).
# Depth counts a_1 to a_d, as section 2 of the paper does. Section 4.1's example and Table 1's CAttnU count
# w_0 too: the overlay config/ablate/depth_with_w0.py.
# The paper trains its Llamas with Adam on the docling data mix and names no tokenizer. Here: AdamW with
# weight decay (--weight_decay=0 is Adam), FineWeb-Edu (the mix: config/ablate/docling_mix.py), and GPT-2's
# tokenizer.
# CAttnM has no queries and keys that RoPE could rotate: its columns are the only encoding of positions.
# What to expect: 2,953,183,580 parameters, 0.88 of the dense FLOPs. Published: 2.5B. Nobody has run it to
# the end here.
out_dir = "out/llama_3b_cofrgenet_a"
dataset = "data/fineweb_edu/gpt2"

n_layer = 28
n_head = 24
n_embd = 3072
block_size = 2048
vocab_size = 128_256
norm = "rmsnorm"
attention = "cattn_m"
cattn_scores = "collapsed"
cattn_strict = True
ffn = "swiglu"
ffn_hidden = 8192
position = "none"
cf_ladders = 7
cf_depth = 7
cf_init = "nanogpt"
cf_linear_intercept = True
cf_eval_clip = True

# 1,048,576 tokens per step: about 2T tokens in 2M steps; 128 micro-batches can be divided among 128 ranks
batch_size = 4
gradient_accumulation_steps = 128
activation_checkpointing = True
max_iters = 2_000_000
learning_rate = 3e-4
min_lr = 3e-5
warmup_iters = 2000
weight_decay = 0.1
decay_ladders = True
dyadic = True

# Our own form of CoFrGeNet-A, not the papers': attention by distance and by content with ladders, at
# GPT2-xl's size.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/ours/ladder_attention.py
#   torchrun --nproc_per_node=8 train.py config/ours/ladder_attention.py config/size/small.py \
#     --out_dir=out/ladder_attention_small
# Our study's attention with four fifths of the dense parameters (results/trainability). It has scores by
# distance and by content, an output projection, values that all heads share, and ladders of depth 1 whose
# denominator is kept positive. There is no positional encoding. The papers' form is config/cofrgenet_a.py.
# What to expect: 1,240,406,800 parameters, 0.78 of the dense FLOPs. Nobody has run it to the end here.
out_dir = "out/ladder_attention"
dataset = "data/openwebtext/gpt2"

n_layer = 48
n_head = 25
n_embd = 1600
block_size = 1024
attention = "cattn_relative"
cattn_heads = None  # as many as n_head
cattn_value_heads = 1
cattn_content = True
cattn_proj = True
position = "none"
cf_ladders = 7
cf_depth = 1

batch_size = 10
gradient_accumulation_steps = 48
max_iters = 600_000
learning_rate = 6e-4
min_lr = 6e-5
warmup_iters = 2000
weight_decay = 0.1

# CoFrGeNet-A at the size of GPT2-xl: CAttnM for attention, dense feed-forward layers.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/cofrgenet_a.py
#   torchrun --nproc_per_node=8 train.py config/cofrgenet_a.py config/size/small.py --out_dir=out/small
# What took the place of config/paper/cofrgenet_a.py in our study (results/trainability.md): CAttnM by
# distance and by content with a projection and values that all heads share, fractions of one partial
# denominator, which is kept positive; no embedding of positions.
# What to expect: 1,240,406,800 parameters, 0.78 of the dense FLOPs. Nobody has run it to the end here.
out_dir = "out/cofrgenet_a"
dataset = "data/openwebtext/gpt2"

n_layer = 48
n_head = 25
n_embd = 1600
block_size = 1024
attention = "cattn_m"
cattn_heads = None  # n_head
cattn_value_heads = 1
cattn_relative = True
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

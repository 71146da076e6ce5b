# CoFrGeNet at the size of GPT2-xl: continued fractions in attention and in feed-forward layers.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/cofrgenet.py
#   torchrun --nproc_per_node=8 train.py config/cofrgenet.py config/size/small.py --out_dir=out/small
# What took the place of config/paper/cofrgenet.py in our study (results/trainability.md): CAttnM by
# distance and by content with a projection, ladders beside a product of two linear maps, fractions of one
# partial denominator, which is kept positive; no embedding of positions. Six layers for five of the dense
# model: --n_layer=14, 29 and 43 on top of size/small, medium and large.
# What to expect: 735,016,956 parameters, 0.49 of the dense FLOPs. Nobody has run it to the end here.
out_dir = "out/cofrgenet"
dataset = "data/openwebtext/gpt2"

n_layer = 58
n_head = 25
n_embd = 1600
block_size = 1024
attention = "cattn_m"
cattn_heads = None  # n_head
cattn_relative = True
cattn_content = True
cattn_proj = True
ffn = "cffn_added"
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

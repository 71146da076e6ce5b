# CoFrGeNet-A at the size of GPT2-xl: CAttnM for attention, dense feed-forward layers.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/cofrgenet_a.py
#   torchrun --nproc_per_node=8 train.py config/cofrgenet_a.py config/size/small.py --out_dir=out/small
# Our defaults for config/paper/cofrgenet_a.py: denominators kept positive, all depths train from the start.
# What to expect: 1,190,695,472 parameters, 0.74 of the dense FLOPs. Nobody has run it to the end here.
out_dir = "out/cofrgenet_a"
dataset = "data/openwebtext/gpt2"

n_layer = 48
n_head = 25
n_embd = 1600
block_size = 1024
attention = "cattn_m"
cf_ladders = 7
cf_depth = 3

batch_size = 10
gradient_accumulation_steps = 48
max_iters = 600_000
learning_rate = 6e-4
min_lr = 6e-5
warmup_iters = 2000
weight_decay = 0.1

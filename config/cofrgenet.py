# CoFrGeNet at the size of GPT2-xl: continued fractions in attention and in feed-forward layers.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/cofrgenet.py
#   torchrun --nproc_per_node=8 train.py config/cofrgenet.py config/size/small.py --out_dir=out/small
# Our defaults for config/paper/cofrgenet.py: ladders beside a product of two linear maps, denominators kept
# positive, all depths train from the start.
# What to expect: 455,566,880 parameters, 0.31 of the dense FLOPs. Nobody has run it to the end here.
out_dir = "out/cofrgenet"
dataset = "data/openwebtext/gpt2"

n_layer = 48
n_head = 25
n_embd = 1600
block_size = 1024
attention = "cattn_m"
ffn = "cffn_added"
cf_ladders = 7
cf_depth = 3

batch_size = 10
gradient_accumulation_steps = 48
max_iters = 600_000
learning_rate = 6e-4
min_lr = 6e-5
warmup_iters = 2000
weight_decay = 0.1

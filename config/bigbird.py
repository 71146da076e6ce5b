# Causal BigBird at the size of GPT2-xl: a token attends to a few past blocks of 64 tokens each.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/bigbird.py
#   torchrun --nproc_per_node=8 train.py config/bigbird.py config/size/small.py --out_dir=out/small
# These are the first block, the token's own block, the block before it, and three random ones: 29 % of all
# pairs of tokens, where causal attention has 50 %. A GPU skips empty tiles of 128 x 128 tokens. At this
# length few tiles are empty, so the speed-up comes with longer sequences.
# What to expect: 1,556,840,000 parameters, 0.96 of the dense FLOPs. Nobody has run it to the end here.
out_dir = "out/bigbird"
dataset = "data/openwebtext/gpt2"

n_layer = 48
n_head = 25
n_embd = 1600
block_size = 1024
attention = "bigbird"
bigbird_block = 64
bigbird_global = 1
bigbird_window = 3
bigbird_random = 3

batch_size = 10
gradient_accumulation_steps = 48
max_iters = 600_000
learning_rate = 2e-4
min_lr = 2e-5
warmup_iters = 2000
weight_decay = 0.1

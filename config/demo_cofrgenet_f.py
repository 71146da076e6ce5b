# A CoFrGeNet-F on presidents' speeches: dense attention, Cffn for feed-forward, all else as demo_dense.py.
#   python data/sotu/prepare.py
#   python train.py config/demo_cofrgenet_f.py
# What to expect: 1.57 bits per byte on unseen speeches after three minutes on two cores.
out_dir = "out/demo_cofrgenet_f"
dataset = "data/sotu/bpe4096"

n_layer = 4
n_head = 4
n_embd = 256
block_size = 256
ffn = "cffn_added"
cf_ladders = 7
cf_depth = 3

batch_size = 8
gradient_accumulation_steps = 1
max_iters = 700
learning_rate = 1.5e-3
min_lr = 1e-4
warmup_iters = 35
log_interval = 10
eval_interval = 100
eval_tokens = 65_536
checkpoint_interval = 200

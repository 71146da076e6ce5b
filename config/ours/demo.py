# Our own form on presidents' speeches: CAttnM of rank 7, and feed-forward layers that add ladders to the
# product of two linear maps. The same steps on the same batches as config/demo_dense.py.
#   python data/sotu/prepare.py
#   python train.py config/ours/demo.py
# What to expect: 1.55 bits per byte on unseen speeches after two minutes on two cores.
out_dir = "out/demo_ours"
dataset = "data/sotu/bpe4096"

n_layer = 4
n_head = 4
n_embd = 256
block_size = 256
attention = "cattn_m"
ffn = "cffn_added"
cf_ladders = 7
cf_depth = 3

batch_size = 4
gradient_accumulation_steps = 2  # two ranks can share a step
max_iters = 700
learning_rate = 3e-3
min_lr = 2e-4
warmup_iters = 35
log_interval = 10
eval_interval = 100
eval_tokens = 65_536
checkpoint_interval = 200

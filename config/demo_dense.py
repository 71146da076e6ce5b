# A dense GPT on presidents' speeches, for a laptop without a GPU.
#   python data/sotu/prepare.py
#   python train.py config/demo_dense.py
out_dir = "out/demo_dense"
dataset = "data/sotu/bpe4096"

n_layer = 4
n_head = 4
n_embd = 256
block_size = 256

batch_size = 8
gradient_accumulation_steps = 1
max_iters = 800
learning_rate = 4e-3
min_lr = 2e-4
warmup_iters = 40
log_interval = 10
eval_interval = 100
eval_tokens = 65_536
checkpoint_interval = 200

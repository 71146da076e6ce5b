# A dense GPT on presidents' speeches, for a laptop without a GPU: the baseline of the other demo models.
#   python data/sotu/prepare.py
#   python train.py config/demo_dense.py
# What to expect: 1.62 bits per byte on unseen speeches after 2.4 minutes on two cores (README.md). The
# learning rate is the best of a sweep in factors of two: 0.75e-3 (validation loss 4.937), 1.5e-3 (4.786),
# 3e-3 (4.980).
out_dir = "out/demo_dense"
dataset = "data/sotu/bpe4096"

n_layer = 4
n_head = 4
n_embd = 256
block_size = 256

batch_size = 4
gradient_accumulation_steps = 2  # two ranks can share a step
max_iters = 700
learning_rate = 1.5e-3
min_lr = 1.5e-4
warmup_iters = 35
log_interval = 10
eval_interval = 100
eval_tokens = 65_536
checkpoint_interval = 200

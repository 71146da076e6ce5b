# A SAFFU on presidents' speeches: written down from counts, then trained. For a laptop without a GPU.
#   python data/sotu/prepare.py
#   python train.py config/saffu.py --saffu_only=True --out_dir=out/saffu_start    (from counts alone)
#   python train.py config/saffu.py
# What to expect: a perplexity of 454 from counts alone, after half a minute on two cores. Counted from the
# same million tokens, unigrams have 713 and interpolated bigrams 104. Training ends at 297.
# The learning rate is the better one of two, 3e-3 and 1e-2, for 220 steps of one seed: no sweep.
out_dir = "out/saffu"
dataset = "data/sotu/bpe4096"

model = "saffu"
block_size = 128
saffu_block = 32
saffu_radius = 8
saffu_hidden = 256
saffu_tokens = 1_000_000

batch_size = 32
gradient_accumulation_steps = 1
max_iters = 330
learning_rate = 1e-2
min_lr = 1e-3
warmup_iters = 0
weight_decay = 0.0
log_interval = 10
eval_interval = 55
eval_tokens = 65_536
checkpoint_interval = 110

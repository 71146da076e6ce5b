# The papers' CoFrGeNet (the model keys of config/cofrgenet.py, four layers of width 256) on presidents'
# speeches: the same steps on the same batches as config/demo_dense.py.
#   python data/sotu/prepare.py
#   python train.py config/demo_cofrgenet.py
# What to expect: a validation loss of 5.10 after 2.5 minutes on two cores; the dense model's is 4.79
# (README.md). Both learning rates are the best of a sweep in factors of two. Here: 3e-3 (validation loss
# 5.142), 6e-3 (5.104), 12e-3 (5.159).
out_dir = "out/demo_cofrgenet"
dataset = "data/sotu/bpe4096"

n_layer = 4
n_head = 4
n_embd = 256
block_size = 256
attention = "cattn_m"
cattn_scores = "collapsed"
cattn_strict = True
ffn = "cffn_gated"
cffn_gate = "self"
cf_ladders = 7
cf_depth = 7
cf_init = "nanogpt"
cf_linear_intercept = True
cf_eval_clip = True

batch_size = 4
gradient_accumulation_steps = 2  # two ranks can share a step
max_iters = 700
learning_rate = 6e-3
min_lr = 6e-4
warmup_iters = 35
decay_ladders = True
dyadic = True
log_interval = 10
eval_interval = 100
eval_tokens = 65_536
checkpoint_interval = 200

# The papers' CoFrGeNet-F (the model keys of config/cofrgenet_f.py, four layers of width 256) on presidents'
# speeches: the same steps on the same batches as config/demo_dense.py.
#   python data/sotu/prepare.py
#   python train.py config/demo_cofrgenet_f.py
# What to expect: a little longer than the dense model's 2.4 minutes on two cores. The learning rate is
# the dense model's.
out_dir = "out/demo_cofrgenet_f"
dataset = "data/sotu/bpe4096"

n_layer = 4
n_head = 4
n_embd = 256
block_size = 256
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
learning_rate = 1.5e-3
min_lr = 1.5e-4
warmup_iters = 35
decay_ladders = True
dyadic = True
log_interval = 10
eval_interval = 100
eval_tokens = 65_536
checkpoint_interval = 200

# The papers' CoFrGeNet-F on a Transformer of today's parts (config/modern.py): the MLP with ReLU squared is
# replaced by the gated Cffn of config/cofrgenet_f.py, whose head explains our readings.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/hybrid/modern_cofrgenet_f.py
#   torchrun --nproc_per_node=8 train.py config/hybrid/modern_cofrgenet_f.py config/size/small.py \
#     --out_dir=out/modern_cofrgenet_f_small
# What to expect: 822,307,696 parameters. Not measured at this size. At half a million parameters
# 2.910 over three seeds, where the Transformer that it changes has 2.868 (results/hybrids).
out_dir = "out/modern_cofrgenet_f"
dataset = "data/openwebtext/gpt2"

n_layer = 48
n_head = 25
n_embd = 1600
block_size = 1024
position = "rope"
norm = "rmsnorm"
qk_norm = True
logit_softcap = 15.0
ffn = "cffn_gated"
cffn_gate = "self"
cf_ladders = 7
cf_depth = 7
cf_init = "nanogpt"
cf_linear_intercept = True
cf_eval_clip = True

batch_size = 10
gradient_accumulation_steps = 48
max_iters = 600_000
optimizer = "muon"
learning_rate = 2e-4
min_lr = 2e-5
warmup_iters = 2000
weight_decay = 0.1
decay_ladders = True
dyadic = True

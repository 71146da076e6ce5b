# Our own form of CoFrGeNet-F, not the papers': a gated linear unit plus ladders, at GPT2-xl's size.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/ours/glu_ladders.py
#   torchrun --nproc_per_node=8 train.py config/ours/glu_ladders.py config/size/small.py --out_dir=out/small
# Of the forms with two thirds of the dense parameters, this one came closest to the dense model in our
# study (results/trainability/README.md). Its gated linear unit is 5/4 as wide as the model, denominators
# are kept positive, and the positional encoding is RoPE. The papers' form is config/cofrgenet_f.py.
# What to expect: 1,035,516,208 parameters, 0.70 of the dense FLOPs. Nobody has run it to the end here.
out_dir = "out/glu_ladders"
dataset = "data/openwebtext/gpt2"

n_layer = 48
n_head = 25
n_embd = 1600
block_size = 1024
ffn = "cffn_gated"
cffn_gate = "glu_collapsed"
position = "rope"
cf_ladders = 7
cf_depth = 3

batch_size = 10
gradient_accumulation_steps = 48
max_iters = 600_000
learning_rate = 6e-4
min_lr = 6e-5
warmup_iters = 2000
weight_decay = 0.1


def derived(keys):
    """Makes the gated linear unit 5/4 as wide as the model."""
    return {"ffn_hidden": keys["n_embd"] * 5 // 4}

# Our own form of CoFrGeNet, not the papers': attention by distance and content; feed-forward layers add
# ladders to the product of two linear maps.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/ours/ladder_full.py
#   torchrun --nproc_per_node=8 train.py config/ours/ladder_full.py config/size/small.py --out_dir=out/small
# Our study's full model with half the dense parameters (results/trainability/README.md), at GPT2-xl's size.
# Attention has scores by distance and by content and an output projection. All ladders have depth 1 and a
# denominator that is kept positive. There is no positional encoding. At every size the model has six layers
# for every five of the dense model. The papers' form is config/cofrgenet.py.
# What to expect: 735,016,956 parameters, 0.49 of the dense FLOPs. Nobody has run it to the end here.
out_dir = "out/ladder_full"
dataset = "data/openwebtext/gpt2"

n_layer = 48  # of the dense model; `derived` multiplies it by 1.2
n_head = 25
n_embd = 1600
block_size = 1024
attention = "cattn_relative"
cattn_heads = None  # as many as n_head
cattn_content = True
cattn_proj = True
ffn = "cffn_added"
position = "none"
cf_ladders = 7
cf_depth = 1

batch_size = 10
gradient_accumulation_steps = 48
max_iters = 600_000
learning_rate = 6e-4
min_lr = 6e-5
warmup_iters = 2000
weight_decay = 0.1


def derived(keys):
    """Six layers for every five of the dense model."""
    return {"n_layer": round(1.2 * keys["n_layer"])}

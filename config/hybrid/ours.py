# Our own form of CoFrGeNet with softmax attention in every third layer, at GPT2-xl's width.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/hybrid/ours.py
#   torchrun --nproc_per_node=8 train.py config/hybrid/ours.py config/size/small.py --out_dir=out/small
# The parts of config/ours/ladder_full.py: attention by distance and content in two layers of three,
# feed-forward layers that add ladders to the product of two linear maps. At every size the model has about
# six layers for every five of the dense model, a multiple of three.
# There is no positional encoding: attention by distance carries the order of the tokens, and the softmax
# layers read it from the layers before them. Every key also holds the token before, without which such
# models learn to copy late (results/hybrids).
# What to expect: 860,923,849 parameters, 0.58 of the dense FLOPs. Not measured at this size. At half a
# million parameters 2.78, where today's Transformer has 2.87; there softmax in the last of six layers
# alone did as well (results/hybrids).
out_dir = "out/hybrid_ours"
dataset = "data/openwebtext/gpt2"

n_layer = 48  # of the dense model; `derived` makes it about 1.2 times as many
n_head = 25
n_embd = 1600
block_size = 1024
attention = "cattn_relative,cattn_relative,softmax"
cattn_heads = None  # as many as n_head
cattn_content = True
cattn_proj = True
token_shift = True
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
    """About six layers for every five of the dense model, in whole patterns."""
    return {"n_layer": 3 * max(1, round(1.2 * keys["n_layer"] / 3))}

# The papers' CoFrGeNet (arXiv version) with softmax attention in every third layer, at GPT2-xl's size.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/hybrid/cofrgenet.py
#   torchrun --nproc_per_node=8 train.py config/hybrid/cofrgenet.py config/size/small.py --out_dir=out/small
# The model and the recipe of config/cofrgenet.py, whose head explains them, but for the attention of every
# third layer. The papers have no such model. Positions are learned, as in theirs: CAttnM scores absolute
# positions anyway, and the softmax layers see them in the embedding.
# What to expect: 633,381,264 parameters, 0.43 of the dense FLOPs. Not measured at this
# size. At half a million parameters 3.48, dense 2.92 (results/hybrids).
out_dir = "out/hybrid_cofrgenet"
dataset = "data/openwebtext/gpt2"

n_layer = 48
n_head = 25
n_embd = 1600
block_size = 1024
attention = "cattn_m,cattn_m,softmax"
cattn_scores = "collapsed"
cattn_strict = True
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
learning_rate = 6e-4
min_lr = 6e-5
warmup_iters = 2000
weight_decay = 0.1
decay_ladders = True
dyadic = True


def derived(keys):
    """Whole patterns, also at a size whose layers are no multiple of three."""
    return {"n_layer": -(-keys["n_layer"] // 3) * 3}

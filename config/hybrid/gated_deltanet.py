# Gated DeltaNet in three layers of four, softmax attention in the fourth, at GPT2-xl's size.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/hybrid/gated_deltanet.py
#   torchrun --nproc_per_node=8 train.py config/hybrid/gated_deltanet.py config/size/small.py \
#     --out_dir=out/hybrid_gated_deltanet_small
# The layers of config/gated_deltanet.py. There is no positional encoding: the recurrent layers carry the
# order of the tokens, and the softmax layers read it from them.
# What to expect: 1,743,098,056 parameters, 1.05 of the dense FLOPs. Not measured at this
# size. At half a million parameters 2.83, today's Transformer 2.87; at a million 2.51 and
# 2.55 (results/hybrids).
out_dir = "out/hybrid_gated_deltanet"
dataset = "data/openwebtext/gpt2"

n_layer = 48
n_head = 25
n_embd = 1600
block_size = 1024
attention = "gated_deltanet,gated_deltanet,gated_deltanet,softmax"
position = "none"

batch_size = 10
gradient_accumulation_steps = 48
max_iters = 600_000
learning_rate = 6e-4
min_lr = 6e-5
warmup_iters = 2000
weight_decay = 0.1


def derived(keys):
    """Whole patterns, also at a size whose layers are no multiple of four."""
    return {"n_layer": -(-keys["n_layer"] // 4) * 4}

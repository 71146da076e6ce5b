# Our own form, not the papers', at Llama-3.2-3B's size: continued fractions in attention and feed-forward.
#   python data/fineweb_edu/prepare.py
#   torchrun --nproc_per_node=8 train.py config/ours/llama_3b_ladder_full.py
#   python train.py config/ours/llama_3b_ladder_full.py --dry_run=True    (what it takes)
# The attention and the feed-forward layers of config/ours/ladder_full.py. The model has six layers for
# every five of the dense model.
# What to expect: 1,743,479,614 parameters, 0.55 of the dense FLOPs. Nobody has run it to the end here.
out_dir = "out/llama_3b_ladder_full"
dataset = "data/fineweb_edu/gpt2"

n_layer = 28  # of the dense model; `derived` multiplies it by 1.2
n_head = 24
n_embd = 3072
block_size = 2048
vocab_size = 128_256
norm = "rmsnorm"
attention = "cattn_relative"
cattn_heads = None  # as many as n_head
cattn_content = True
cattn_proj = True
ffn = "cffn_added"
position = "none"
cf_ladders = 7
cf_depth = 1

# 1,048,576 tokens per step: about 2T tokens in 2M steps; 128 micro-batches can be divided among 128 ranks
batch_size = 4
gradient_accumulation_steps = 128
activation_checkpointing = True
max_iters = 2_000_000
learning_rate = 3e-4
min_lr = 3e-5
warmup_iters = 2000
weight_decay = 0.1


def derived(keys):
    """Six layers for every five of the dense model."""
    return {"n_layer": round(1.2 * keys["n_layer"])}

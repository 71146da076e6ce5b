# Our own form, not the papers', at Llama-3.2-3B's size: a gated linear unit plus ladders.
#   python data/fineweb_edu/prepare.py
#   torchrun --nproc_per_node=8 train.py config/ours/llama_3b_glu_ladders.py
#   python train.py config/ours/llama_3b_glu_ladders.py --dry_run=True    (what it takes)
# The model of config/llama_3b.py with the feed-forward layers of config/ours/glu_ladders.py: a gated linear
# unit 5/4 as wide as the model, plus ladders whose denominators are kept positive.
# What to expect: 2,092,585,548 parameters, 0.69 of the dense FLOPs. Nobody has run it to the end here.
out_dir = "out/llama_3b_glu_ladders"
dataset = "data/fineweb_edu/gpt2"

n_layer = 28
n_head = 24
n_kv_head = 8
n_embd = 3072
block_size = 2048
vocab_size = 128_256
norm = "rmsnorm"
ffn = "cffn_gated"
cffn_gate = "glu_collapsed"
position = "rope"
rope_base = 500_000.0
rope_scaling = "llama3"
cf_ladders = 7
cf_depth = 3

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
    """Makes the gated linear unit 5/4 as wide as the model."""
    return {"ffn_hidden": keys["n_embd"] * 5 // 4}

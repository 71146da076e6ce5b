# Our own form, not the papers', at Llama-3.2-3B's size: attention by distance and content.
#   python data/fineweb_edu/prepare.py
#   torchrun --nproc_per_node=8 train.py config/ours/llama_3b_ladder_attention.py
#   python train.py config/ours/llama_3b_ladder_attention.py --dry_run=True    (what it takes)
# The attention of config/ours/ladder_attention.py: scores by distance and by content, an output projection,
# values that all heads share, ladders of depth 1. It has no queries and keys that RoPE could rotate, so
# there is no positional encoding. It saves fewer parameters than at GPT-2's sizes, because Llama's
# attention has grouped keys and values.
# What to expect: 2,836,348,512 parameters, 0.85 of the dense FLOPs. Nobody has run it to the end here.
out_dir = "out/llama_3b_ladder_attention"
dataset = "data/fineweb_edu/gpt2"

n_layer = 28
n_head = 24
n_embd = 3072
block_size = 2048
vocab_size = 128_256
norm = "rmsnorm"
attention = "cattn_relative"
cattn_heads = None  # as many as n_head
cattn_value_heads = 1
cattn_content = True
cattn_proj = True
ffn = "swiglu"
ffn_hidden = 8192
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

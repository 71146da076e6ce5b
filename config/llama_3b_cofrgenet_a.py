# CoFrGeNet-A at the size of Llama-3.2-3B: CAttnM for attention, SwiGLU for feed-forward.
#   python data/fineweb_edu/prepare.py
#   torchrun --nproc_per_node=8 train.py config/llama_3b_cofrgenet_a.py    (several nodes: launch/slurm.sh)
#   python train.py config/llama_3b_cofrgenet_a.py --dry_run=True    (what it takes)
# CAttnM has no queries and keys for RoPE to turn and addresses positions by itself: there is no encoding.
# W^v is as narrow as Llama's, so that the cache is half of its keys and values; the single head's output is
# repeated (--cattn_heads=3 gives each copy weights of its own).
# What to expect: 2,598,997,580 parameters, 0.75 of the dense FLOPs; the paper's has 2.5B, fewer than
# without any attention. Nobody has run it to the end here.
out_dir = "out/llama_3b_cofrgenet_a"
dataset = "data/fineweb_edu/gpt2"

n_layer = 28
n_head = 24
n_embd = 3072
block_size = 2048
vocab_size = 128_256
norm = "rmsnorm"
attention = "cattn_m"
cattn_value_heads = 8
ffn = "swiglu"
ffn_hidden = 8192
position = "none"
cf_ladders = 7
cf_depth = 3

# 1,048,576 tokens a step, about what 2T tokens in 2M steps come to; 128 micro-batches suit 128 ranks
batch_size = 4
gradient_accumulation_steps = 128
activation_checkpointing = True
max_iters = 2_000_000
learning_rate = 3e-4
min_lr = 3e-5
warmup_iters = 2000
weight_decay = 0.1

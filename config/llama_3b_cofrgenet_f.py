# CoFrGeNet-F at the size of Llama-3.2-3B: its attention, feed-forward layers made of continued fractions.
#   python data/fineweb_edu/prepare.py
#   torchrun --nproc_per_node=8 train.py config/llama_3b_cofrgenet_f.py    (several nodes: launch/slurm.sh)
#   python train.py config/llama_3b_cofrgenet_f.py --dry_run=True    (what it takes)
# All but the feed-forward layers is config/llama_3b.py's; they are those of config/cofrgenet_f.py: a
# gated linear unit 5/4 as wide as the model, fractions beside it, denominators kept positive.
# What to expect: 2,092,585,548 parameters, 0.69 of the dense FLOPs; the paper's has 2.1B. Nobody has run
# it to the end here.
out_dir = "out/llama_3b_cofrgenet_f"
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
ffn_hidden = 3840
position = "rope"
rope_base = 500_000.0
rope_scaling = "llama3"
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

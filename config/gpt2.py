# GPT-2 small (124M) with nanoGPT's recipe: the baseline at that size.
#   python data/openwebtext/prepare.py
#   python train.py config/gpt2.py
# What to expect: 600,000 steps of 0.49M tokens. nanoGPT's README reports a loss of about 2.85 on
# OpenWebText for this recipe, after four days on eight A100 GPUs. Nobody has run it to the end here.
out_dir = "out/gpt2"
dataset = "data/openwebtext/gpt2"

n_layer = 12
n_head = 12
n_embd = 768
block_size = 1024

# nanoGPT's 480 sequences per step, in 48 micro-batches instead of 40, to be divisible among 16 ranks too
batch_size = 10
gradient_accumulation_steps = 48
max_iters = 600_000
learning_rate = 6e-4
min_lr = 6e-5
warmup_iters = 2000
weight_decay = 0.1

# GPT2-xl, dense: the baseline at the papers' size.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/gpt2_xl.py
#   torchrun --nproc_per_node=8 train.py config/gpt2_xl.py config/size/small.py --out_dir=out/gpt2_xl_small
# The learning rate 2e-4 is GPT-3's for 1.3B parameters.
# What to expect: 1,556,840,000 parameters. Published: 1.5B. Nobody has run it to the end here.
out_dir = "out/gpt2_xl"
dataset = "data/openwebtext/gpt2"

n_layer = 48
n_head = 25
n_embd = 1600
block_size = 1024

batch_size = 10
gradient_accumulation_steps = 48
max_iters = 600_000
learning_rate = 2e-4
min_lr = 2e-5
warmup_iters = 2000
weight_decay = 0.1

# Dense Synthesizer at the size of GPT2-xl: attention weights depend on each token alone; there are no
# queries and keys.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/synthesizer_d.py
#   torchrun --nproc_per_node=8 train.py config/synthesizer_d.py config/size/small.py --out_dir=out/small
# A baseline for config/cofrgenet_a.py, whose scores address absolute positions too. Feed-forward layers are
# dense. Unlike config/paper/synthesizer_d.py, this model has an output projection, as softmax attention
# does.
# What to expect: 1,395,944,000 parameters, 0.86 of the dense FLOPs. Nobody has run it to the end here.
out_dir = "out/synthesizer_d"
dataset = "data/openwebtext/gpt2"

n_layer = 48
n_head = 25
n_embd = 1600
block_size = 1024
attention = "synthesizer"

batch_size = 10
gradient_accumulation_steps = 48
max_iters = 600_000
learning_rate = 2e-4
min_lr = 2e-5
warmup_iters = 2000
weight_decay = 0.1

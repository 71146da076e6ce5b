# Gated DeltaNet (Yang, Kautz and Hatamizadeh 2024) at the size of GPT2-xl: linear attention whose state
# forgets and overwrites. Feed-forward layers are dense.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/gated_deltanet.py
#   torchrun --nproc_per_node=8 train.py config/gated_deltanet.py config/size/small.py --out_dir=out/small
# Keys are 3/4 and values 3/2 as wide as the model, as in the paper, with 6 p^2 weights in a layer where
# softmax attention has 4 p^2. The number of heads is GPT2-xl's: the authors have fewer and wider ones,
# whose state is larger. The state carries the order of the tokens: no positions are added.
# What to expect: 1,805,730,208 parameters, 1.06 of the dense FLOPs. Nobody has run it to the end here.
out_dir = "out/gated_deltanet"
dataset = "data/openwebtext/gpt2"

n_layer = 48
n_head = 25
n_embd = 1600
block_size = 1024
attention = "gated_deltanet"
position = "none"

batch_size = 10
gradient_accumulation_steps = 48
max_iters = 600_000
learning_rate = 6e-4
min_lr = 6e-5
warmup_iters = 2000
weight_decay = 0.1

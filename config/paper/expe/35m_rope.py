# The ExPE paper's 35M model with RoPE.
#   python data/fineweb_edu/prepare.py --tokenizer=bpe:32000 --out=data/fineweb_edu/bpe32000
#   python data/fineweb/prepare.py --tokenizer=data/fineweb_edu/bpe32000/tokenizer.json \
#     --out=data/fineweb/bpe32000
#   torchrun --nproc_per_node=8 train.py config/paper/expe/35m_rope.py
# The paper gives: 35M parameters, a standard decoder, 512 tokens of context, a vocabulary of 32,000 and
# 600M tokens of training.
# The shape is a guess that gives 35M. Batch size and learning rate are ours.
# The data are documents of FineWeb with at least 4000 tokens, as in the paper. The tokenizer is trained on
# FineWeb-Edu and replaces Llama's. RoPE's base is not given: here 10000.
# What to expect: 35,265,024 parameters. Table 3, RoPe: loss 3.88 at 512 tokens, 4.37 at 1024, 5.05 at 2048.
out_dir = "out/paper_expe_35m_rope"
dataset = "data/fineweb/bpe32000"

n_layer = 6
n_head = 8
n_embd = 512
block_size = 512
vocab_size = 32_000
position = "rope"

# 65,536 tokens per step: one epoch of 600M tokens
batch_size = 16
gradient_accumulation_steps = 8
max_iters = 9_155
learning_rate = 6e-4
min_lr = 6e-5
warmup_iters = 200
weight_decay = 0.1

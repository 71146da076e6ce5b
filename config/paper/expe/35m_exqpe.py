# The ExPE paper's 35M model with ExQPE.
#   python data/fineweb_edu/prepare.py --tokenizer=bpe:32000 --out=data/fineweb_edu/bpe32000
#   python data/fineweb/prepare.py --tokenizer=data/fineweb_edu/bpe32000/tokenizer.json \
#     --out=data/fineweb/bpe32000
#   torchrun --nproc_per_node=8 train.py config/paper/expe/35m_exqpe.py
# The paper gives: 35M parameters, a standard decoder, 512 tokens of context, a vocabulary of 32,000 and
# 600M tokens of training.
# The shape is a guess that gives 35M. Batch size and learning rate are ours.
# The data are documents of FineWeb with at least 4000 tokens, as in the paper. The tokenizer is trained on
# FineWeb-Edu and replaces Llama's.
# S = 0. theta = 1/2048, because in the paper's text the values of 512 tokens run from 0 to 1/4. Its "for
# example 1/2m", with m the longest training input, would give 1/1024. The paper does not give l: here a
# sixteenth of n_embd.
# theta_1 = theta and theta_2 = l theta are our choice: the mean column grows as fast as ExPE's.
# What to expect: 35,265,024 parameters. This model is in none of the paper's tables; it completes the grid.
out_dir = "out/paper_expe_35m_exqpe"
dataset = "data/fineweb/bpe32000"

n_layer = 6
n_head = 8
n_embd = 512
block_size = 512
vocab_size = 32_000
position = "exqpe"
expe_theta = 1 / 2048

# 65,536 tokens per step: one epoch of 600M tokens
batch_size = 16
gradient_accumulation_steps = 8
max_iters = 9_155
learning_rate = 6e-4
min_lr = 6e-5
warmup_iters = 200
weight_decay = 0.1

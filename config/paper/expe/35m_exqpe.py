# The ExPE paper's 35M model with ExQPE.
#   python data/fineweb_edu/prepare.py --tokenizer=bpe:32000 --out=data/fineweb_edu/bpe32000
#   python data/fineweb/prepare.py --tokenizer=data/fineweb_edu/bpe32000/tokenizer.json \
#     --out=data/fineweb/bpe32000
#   torchrun --nproc_per_node=8 train.py config/paper/expe/35m_exqpe.py
# Given: 35M parameters, a standard decoder, 512 tokens, a vocabulary of 32,000, 600M tokens of training.
# The shape is a guess that gives 35M, the step and the learning rate are ours. The data are FineWeb's
# documents of at least 4000 tokens, as given; Llama's tokenizer gives way to one trained on FineWeb-Edu.
# S = 0. theta = 1/2048: the text has the values of 512 tokens run from 0 to 1/4. Its "for example 1/2m",
# m the longest training input, would be 1/1024. l is not given: a sixteenth of n_embd. theta_1 = theta
# and theta_2 = l theta are ours: the mean column grows as fast as ExPE's.
# What to expect: 35,265,024 parameters. In none of the paper's tables: it completes the grid.
out_dir = "out/paper_expe_35m_exqpe"
dataset = "data/fineweb/bpe32000"

n_layer = 6
n_head = 8
n_embd = 512
block_size = 512
vocab_size = 32_000
position = "exqpe"
expe_theta = 1 / 2048

# 65,536 tokens a step: 600M tokens once
batch_size = 16
gradient_accumulation_steps = 8
max_iters = 9_155
learning_rate = 6e-4
min_lr = 6e-5
warmup_iters = 200
weight_decay = 0.1

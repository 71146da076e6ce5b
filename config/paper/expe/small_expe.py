# The ExPE paper's Small model with ExPE.
#   python data/fineweb_edu/prepare.py --tokenizer=bpe:32768 --out=data/fineweb_edu/bpe32768
#   torchrun --nproc_per_node=8 train.py config/paper/expe/small_expe.py
# The paper gives: Llama 3's block, 512 tokens of context, and shapes based on GPT-3's. Of FineWeb-Edu it
# names "10 billion parameters", which we take as tokens, and 600 million training tokens: a 17th. Their
# table is in an appendix that we have not seen: this is GPT-3 Small, without grouped queries and with a
# head of its own.
# Batch size, learning rate, warmup and weight decay are not given and are GPT-3's. The tokenizer trained
# here has as many tokens as Mistral's, which the paper uses.
# S = 0. theta = 1/2048, because in the paper's text the values of 512 tokens run from 0 to 1/4. Its "for
# example 1/2m", with m the longest training input, would give 1/1024. The paper does not give l: here a
# sixteenth of n_embd.
# What to expect: 135,285,504 parameters. Table 1, ExPE Small: loss 2.87 at 512 tokens, 2.83 at 1024, 3.25
# at 2048.
out_dir = "out/paper_expe_small_expe"
dataset = "data/fineweb_edu/bpe32768"

n_layer = 12
n_head = 12
n_embd = 768
block_size = 512
vocab_size = 32_768
position = "expe"
expe_theta = 1 / 2048
norm = "rmsnorm"
ffn = "swiglu"
tie_embeddings = False

# 524,288 tokens per step: one epoch of 10B tokens
batch_size = 16
gradient_accumulation_steps = 64
max_iters = 19_073
learning_rate = 6e-4
min_lr = 6e-5
warmup_iters = 715
weight_decay = 0.1

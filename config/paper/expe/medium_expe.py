# The ExPE paper's Medium model with ExPE.
#   python data/fineweb_edu/prepare.py --tokenizer=bpe:32768 --out=data/fineweb_edu/bpe32768
#   torchrun --nproc_per_node=8 train.py config/paper/expe/medium_expe.py
# The paper gives: Llama 3's block, the embedding shared with the head, 512 tokens of context, and shapes
# based on GPT-3's. Of FineWeb-Edu it names "10 billion parameters", which we take as tokens, and 600
# million training tokens: a 17th. Their table is in an appendix that we have not seen: this is
# GPT-3 Medium, without grouped queries.
# Batch size, learning rate, warmup and weight decay are not given and are GPT-3's. The tokenizer trained
# here has as many tokens as Mistral's, which the paper uses.
# S = 0. theta = 1/2048, because in the paper's text the values of 512 tokens run from 0 to 1/4. Its "for
# example 1/2m", with m the longest training input, would give 1/1024. The paper does not give l: here a
# sixteenth of n_embd.
# What to expect: 341,885,952 parameters. Tables 1 and 4, ExPE Medium: loss 2.63 at 512 tokens, 2.59 at
# 1024, 2.71 at 2048, 5.19 at 4096, 7.56 at 8192; with --expe_inference_scale=0.5: 2.76, 2.71, 2.68, 2.98,
# 5.65 at the same lengths.
out_dir = "out/paper_expe_medium_expe"
dataset = "data/fineweb_edu/bpe32768"

n_layer = 24
n_head = 16
n_embd = 1024
block_size = 512
vocab_size = 32_768
position = "expe"
expe_theta = 1 / 2048
norm = "rmsnorm"
ffn = "swiglu"

# 524,288 tokens per step: one epoch of 10B tokens
batch_size = 16
gradient_accumulation_steps = 64
max_iters = 19_073
learning_rate = 3e-4
min_lr = 3e-5
warmup_iters = 715
weight_decay = 0.1

# The ExPE paper's Medium model with RoPE.
#   python data/fineweb_edu/prepare.py --tokenizer=bpe:32768 --out=data/fineweb_edu/bpe32768
#   torchrun --nproc_per_node=8 train.py config/paper/expe/medium_rope.py
# The paper gives: Llama 3's block, the embedding shared with the head, 512 tokens of context, and shapes
# based on GPT-3's. Of FineWeb-Edu it names "10 billion parameters", which we take as tokens, and 600
# million training tokens: a 17th. Their table is in an appendix that we have not seen: this is
# GPT-3 Medium, without grouped queries.
# Batch size, learning rate, warmup and weight decay are not given and are GPT-3's. The tokenizer trained
# here has as many tokens as Mistral's, which the paper uses. RoPE's base is not given: here 10000.
# What to expect: 341,885,952 parameters. Table 1, LLama Medium: loss 2.63 at 512 tokens, 3.45 at 1024,
# 4.55 at 2048.
out_dir = "out/paper_expe_medium_rope"
dataset = "data/fineweb_edu/bpe32768"

n_layer = 24
n_head = 16
n_embd = 1024
block_size = 512
vocab_size = 32_768
position = "rope"
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

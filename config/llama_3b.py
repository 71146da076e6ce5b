# The architecture of Llama-3.2-3B: RMSNorm, SwiGLU, grouped-query attention, RoPE, a tied head, no biases.
#   python data/fineweb_edu/prepare.py
#   torchrun --nproc_per_node=8 train.py config/llama_3b.py    (several nodes: launch/slurm.sh)
#   python train.py config/llama_3b.py --dry_run=True    (what it takes)
# Steps and peak learning rate are those of the CoFrGeNet paper's Llama (about 2M steps, 2T tokens, of
# which the batch follows), which has Adam and the docling data mix (config/ablate/docling_mix.py). The
# rest of the recipe is nanoGPT's: AdamW with weight decay (--weight_decay=0 is Adam, with betas 0.9 and
# 0.95). The data are FineWeb-Edu. The tokenizer is GPT-2's, because data/ cannot read Llama's tokenizer
# file. vocab_size is Llama's, so that the parameter count is the published one. The context length is our
# choice; no parameter depends on it.
# What to expect: 3,212,749,824 parameters. Published: 3.2B. Nobody has run it to the end here.
out_dir = "out/llama_3b"
dataset = "data/fineweb_edu/gpt2"

n_layer = 28
n_head = 24
n_kv_head = 8
n_embd = 3072
block_size = 2048
vocab_size = 128_256
norm = "rmsnorm"
ffn = "swiglu"
ffn_hidden = 8192
position = "rope"
rope_base = 500_000.0
rope_scaling = "llama3"

# 1,048,576 tokens per step: about 2T tokens in 2M steps; 128 micro-batches can be divided among 128 ranks
batch_size = 4
gradient_accumulation_steps = 128
activation_checkpointing = True
max_iters = 2_000_000
learning_rate = 3e-4
min_lr = 3e-5
warmup_iters = 2000
weight_decay = 0.1

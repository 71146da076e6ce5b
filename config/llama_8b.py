# The architecture of Llama-3.1-8B: RMSNorm, SwiGLU, grouped-query attention, RoPE, untied head, no biases.
#   python data/fineweb_edu/prepare.py
#   torchrun --nproc_per_node=8 train.py config/llama_8b.py    (several nodes: launch/slurm.sh)
#   python train.py config/llama_8b.py --dry_run=True    (what it takes, and on how many GPUs)
# Steps, peak learning rate and tokens per step (2M steps, 2T tokens) are those of config/llama_3b.py, so
# that the two sizes can be compared. Llama 3 was trained on 15T tokens. The tokenizer is GPT-2's, because
# data/ cannot read Llama's tokenizer file. vocab_size is Llama's, so that the parameter count is the
# published one. The context length is that of Llama 3's first training phase. No parameter depends on it.
# What to expect: 8,030,261,248 parameters. Published: the same number. Nobody has run it to the end here.
out_dir = "out/llama_8b"
dataset = "data/fineweb_edu/gpt2"

n_layer = 32
n_head = 32
n_kv_head = 8
n_embd = 4096
block_size = 8192
vocab_size = 128_256
tie_embeddings = False
norm = "rmsnorm"
ffn = "swiglu"
position = "rope"
rope_base = 500_000.0
rope_scaling = "llama3"
rope_factor = 8.0

# 1,048,576 tokens per step: about 2T tokens in 2M steps; 128 micro-batches can be divided among 128 ranks
batch_size = 1
gradient_accumulation_steps = 128
activation_checkpointing = True
max_iters = 2_000_000
learning_rate = 3e-4
min_lr = 3e-5
warmup_iters = 2000
weight_decay = 0.1


def derived(keys):
    """Makes SwiGLU 7/2 as wide as the model: 14,336 columns."""
    return {"ffn_hidden": keys["n_embd"] * 7 // 2}

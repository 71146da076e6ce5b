# The paper's Llama with CoFrGeNet: CAttnM for attention and the gated Cffn for feed-forward.
#   python data/docling_mix/prepare.py --max_tokens=100_000_000_000 --stack_edu_files=PATH
#   torchrun --nproc_per_node=8 train.py config/paper/llama_3b_cofrgenet.py
# Given: 2T tokens of the docling data mix, 2M steps, Adam, a rate of 3e-4 that is annealed, no dropout.
# Weights of the mix, batch, context, warmup, last rate and weight decay are ours, the tokens GPT-2's.
# The published size is that of no reading which gives the other two.
# What to expect: 1,196,936,192 parameters. Published: 1.8B. Nobody has run it to the end here.
out_dir = "out/paper_llama_3b_cofrgenet"
dataset = (
    "data/docling_mix/dclm2/gpt2:24,data/docling_mix/dclm3plus/gpt2:24,data/docling_mix/fineweb2/gpt2:10,"
    "data/docling_mix/starcoder/gpt2:12,data/docling_mix/stack_edu/gpt2:12,data/docling_mix/finemath/gpt2:5,"
    "data/docling_mix/infiwebmath/gpt2:5,data/docling_mix/opc_math/gpt2:4,data/docling_mix/cosmopedia/gpt2:4"
)

n_layer = 28
n_head = 24
n_embd = 3072
block_size = 2048
vocab_size = 128_256
norm = "rmsnorm"
attention = "cattn_m"
ffn = "cffn_gated"
cffn_gate = "self"
position = "none"
cf_ladders = 7
cf_depth = 7
cf_pole = "clamp"
cf_eps = 0.01
cf_init = "nanogpt"
cf_eval_clip = True

# 1,048,576 tokens a step, about what 2T tokens in 2M steps come to; 128 micro-batches suit 128 ranks
batch_size = 4
gradient_accumulation_steps = 128
activation_checkpointing = True
max_iters = 2_000_000
learning_rate = 3e-4
min_lr = 3e-5
warmup_iters = 2000
weight_decay = 0.1
decay_ladders = True
dyadic = True

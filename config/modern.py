# A Transformer of today's parts, at the size of GPT2-xl: the baseline that is harder to beat than GPT-2.
#   python data/openwebtext/prepare.py
#   torchrun --nproc_per_node=8 train.py config/modern.py
#   torchrun --nproc_per_node=8 train.py config/modern.py config/size/small.py --out_dir=out/modern_small
# RoPE, RMSNorm, QK-norm, ReLU squared, logits capped at 15, no biases, Muon for the linear maps: as
# nanochat (karpathy on GitHub, 92d63d4), and modded-nanogpt (KellerJordan, f411b3d) but for its form of the
# cap. Departures from both: norms have weights, those of queries and keys in place of a fixed factor; the
# head is tied; there are no learned scales of the residual stream, no smearing. Overlays add two more parts
# of theirs: config/ablate/windows.py, and value_embeddings.py with 1.9 billion parameters at this size.
# What to expect: 1,555,207,744 parameters. Nobody has run it to the end here.
out_dir = "out/modern"
dataset = "data/openwebtext/gpt2"

n_layer = 48
n_head = 25
n_embd = 1600
block_size = 1024
position = "rope"
norm = "rmsnorm"
qk_norm = True
mlp_activation = "relu2"
logit_softcap = 15.0

batch_size = 10
gradient_accumulation_steps = 48
max_iters = 600_000
optimizer = "muon"
learning_rate = 2e-4
min_lr = 2e-5
warmup_iters = 2000
weight_decay = 0.1

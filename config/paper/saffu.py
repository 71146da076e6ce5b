# "Explicit Foundation Model Optimization with Self-Attentive Feed-Forward Neural Units": the model with
# r = 8 and b = 128, a warm start, and Adam at the rate that its log fits (printed as "10^5/2").
#   python data/sotu/prepare.py --tokenizer=bpe:2848
#   python train.py config/paper/saffu.py
#   python train.py config/paper/saffu.py --saffu_only=True --saffu_tuning=0 --out_dir=out/saffu_table_3
# The second is a cell of Table 3.
# The paper trains on BabyLM, 10 million words in lines, with a vocabulary of 2,848. D_H, the batch, the
# rate's decay and Adam's betas are not given: PyTorch's betas, a constant rate, 64 x 127 tokens. It stops
# early, we after ten epochs or so. Blocks are read within windows of 127 tokens. The shift c of the
# attention's targets takes log(N + 3) for its log N: the three special tokens count, and have counts as
# features. A block holds up to b - 1 tokens before its target. The slots of queries and the head's K are
# not given (docs/saffu.md). Tuning reads the same million tokens ten times, where the paper has ten folds
# of a million; targets of hidden states are divided by their sums, where the paper keeps raw bits; there is
# no document model.
# What to expect: 2,029,088 parameters, of which 1,572,928 are trained: the embeddings are not. The paper's
# perplexities are of BabyLM's lines and not to be had here: 44.9 from counts alone, and 23.7 after
# training, which seems to be that of a model with documents (Table 5).
out_dir = "out/paper_saffu"
dataset = "data/sotu/bpe2848"

model = "saffu"
vocab_size = 2848
block_size = 127
saffu_block = 128
saffu_radius = 8
saffu_block_width = 128
saffu_radius_width = 32
saffu_hidden = 256
saffu_tokens = 1_000_000
saffu_tuning = 10

batch_size = 64
gradient_accumulation_steps = 1
max_iters = 3500
learning_rate = 5e-6
min_lr = 5e-6
warmup_iters = 0
weight_decay = 0.0
beta2 = 0.999
grad_clip = 0.0
log_interval = 50
eval_interval = 125
eval_tokens = 100_000
checkpoint_interval = 500

# The Bible: a chapter after its first sentence, an encoder-decoder of Lavik's report "Transformer".
#   python data/bible/prepare.py --unit=opening --tokenizer=bpe:7000 --val_fraction=0.085
#   python train.py config/report/bible_next.py
#   python translate.py out/report_bible_next --text="Where the flower grows." --temperature=1 --top_k=75 \
#     --max_new_tokens=150
# What to expect: 12,824,448 parameters. 1,187 pairs of about 800 tokens, 97 of them validation: take a GPU.
# The report has 1,185 pairs of the same translation. A step is 24 pairs, here in six micro-batches.
# As in the report: ReLU, sizes, vocabulary, biases, dropout, batch, Adam with its constant rate, 300
# epochs of 45 steps. Its settings say 50 epochs, its log goes on to 300.
# Departures: norms stand before each part, not after it; source, target and head share one matrix, where
# the report has three; weights are drawn as GPT-2's, not by Xavier's rule; Adam's epsilon is 1e-8, not
# 1e-9; GPT-2's pattern splits the text into words, not GPT-4's.
out_dir = "out/report_bible_next"
dataset = "data/bible/opening_bpe7000"
vocab_size = 7_000

encoder_layers = 3
n_layer = 3
n_head = 7
n_embd = 448
ffn_hidden = 448
block_size = 3072
position = "sinusoidal"
mlp_activation = "relu"
bias = True
dropout = 0.1

batch_size = 4
gradient_accumulation_steps = 6
max_iters = 13_500
learning_rate = 1e-4
min_lr = 1e-4  # constant
lr_schedule = "linear"
warmup_iters = 0
weight_decay = 0.0
beta2 = 0.98
grad_clip = 0.0
eval_interval = 450
eval_tokens = 298_000
checkpoint_interval = 450

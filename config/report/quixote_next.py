# Don Quixote: the next paragraph after a sentence, an encoder-decoder of Lavik's report "Transformer".
# You bring the pairs as lines, a tab between the two: quixote_pairs.txt of the report's code, or your own.
#   python data/pairs/prepare.py --input=quixote_pairs.txt --out=data/pairs/quixote --tokenizer=bpe:19000 \
#     --val_fraction=0.026
#   python train.py config/report/quixote_next.py
#   python translate.py out/report_quixote_next --text="And so the knight rode on." --max_new_tokens=50
# What to expect: 22,356,992 parameters. 3,801 pairs, 100 of them validation; the report's validation loss
# was lowest long before the end. --dry_run=True prints a plan without the file.
# As in the report: ReLU, sizes, biases, dropout, batch, Adam with its constant rate, 50 epochs of 58
# steps.
# Departures: norms stand before each part, not after it; source, target and head share one matrix, where
# the report has three; weights are drawn as GPT-2's, not by Xavier's rule; Adam's epsilon is 1e-8, not
# 1e-9; its tokenizer has 24,540 tokens, of which ours stops at those that occur twice.
out_dir = "out/report_quixote_next"
dataset = "data/pairs/quixote"
vocab_size = 19_000

encoder_layers = 3
n_layer = 3
n_head = 8
n_embd = 512
ffn_hidden = 512
block_size = 1024
position = "sinusoidal"
mlp_activation = "relu"
bias = True
dropout = 0.1

batch_size = 64
gradient_accumulation_steps = 1
max_iters = 2_900
learning_rate = 1e-4
min_lr = 1e-4  # constant
lr_schedule = "linear"
warmup_iters = 0
weight_decay = 0.0
beta2 = 0.98
grad_clip = 0.0
eval_interval = 58
eval_tokens = 102_400
checkpoint_interval = 58

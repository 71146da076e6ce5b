# English to Norwegian Bokmål, the encoder-decoder of Lavik's report "Transformer".
# You bring the training text of opus-100 (en-no, 1,000,000 pairs): two files, aligned line by line.
#   python data/pairs/prepare.py --input=opus.en,opus.nb --out=data/pairs/en_nb --tokenizer=bpe:65536 \
#     --val_fraction=0.002
#   python train.py config/report/en_nb.py
#   python translate.py out/report_en_nb --text="I like to sit at school when I work."
# What to expect: 46,179,328 parameters, where the report has 113.4 million, 100.7 of them in its three
# vocabulary matrices. It measures no translation. Its validation loss was lowest after 6 epochs, so that
# --max_iters=62400 is enough. --dry_run=True prints a plan without the files.
# As in the report: ReLU, sizes, biases, dropout, batch, Adam with its constant rate, 45 epochs of 10,400
# steps.
# Departures: norms stand before each part, not after it; source, target and head share one matrix, where
# the report has three; weights are drawn as GPT-2's, not by Xavier's rule; Adam's epsilon is 1e-8, not
# 1e-9; the tokenizer is trained on these pairs. Pairs of more than 256 tokens are left out, and counted.
out_dir = "out/report_en_nb"
dataset = "data/pairs/en_nb"
vocab_size = 65_536

encoder_layers = 3
n_layer = 3
n_head = 8
n_embd = 512
ffn_hidden = 512
block_size = 256
position = "sinusoidal"
mlp_activation = "relu"
bias = True
dropout = 0.1

batch_size = 96
gradient_accumulation_steps = 1
max_iters = 468_000
learning_rate = 1e-4
min_lr = 1e-4  # constant
lr_schedule = "linear"
warmup_iters = 0
weight_decay = 0.0
beta2 = 0.98
grad_clip = 0.0
eval_interval = 10_400
eval_tokens = 512_000
checkpoint_interval = 10_400

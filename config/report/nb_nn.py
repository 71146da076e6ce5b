# Norwegian Bokmål to Nynorsk, the encoder-decoder of Lavik's report "Transformer".
# You bring sentence1 of norwegian-paws-x (49,401 pairs): two files, aligned line by line.
#   python data/pairs/prepare.py --input=paws.nb,paws.nn --out=data/pairs/nb_nn --tokenizer=bpe:50000 \
#     --val_fraction=0.04
#   python train.py config/report/nb_nn.py
#   python translate.py out/report_nb_nn --pairs=data/pairs/nb_nn/val.bin
# What to expect: 78,173,184 parameters. The report finds its model bad, and its data too: both sides are
# translations by machine, and it measures nothing. --dry_run=True prints a plan without the files.
# As in the report: ReLU, the layers that it prints (its settings say 8 and 12), sizes, biases, dropout,
# batch, Adam with its constant rate, 60 epochs of 386 steps. If these pairs give fewer than 50,000 tokens,
# prepare.py names their number: prepare with that.
# Departures: norms stand before each part, not after it; source, target and head share one matrix, where
# the report has three; weights are drawn as GPT-2's, not by Xavier's rule; Adam's epsilon is 1e-8, not
# 1e-9; the tokenizer is trained on these pairs. Pairs of more than 256 tokens are left out, and counted.
out_dir = "out/report_nb_nn"
dataset = "data/pairs/nb_nn"
vocab_size = 50_000

encoder_layers = 6
n_layer = 8
n_head = 8
n_embd = 512
ffn_hidden = 2048
block_size = 256
position = "sinusoidal"
mlp_activation = "relu"
bias = True
dropout = 0.1

batch_size = 128
gradient_accumulation_steps = 1
max_iters = 23_160
learning_rate = 1e-4
min_lr = 1e-4  # constant
lr_schedule = "linear"
warmup_iters = 0
weight_decay = 0.0
beta2 = 0.98
grad_clip = 0.0
eval_interval = 386
eval_tokens = 524_288
checkpoint_interval = 386

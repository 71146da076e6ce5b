# Kafka: the next sentences after a sentence, an encoder-decoder of Lavik's report "Transformer".
# You bring the pairs as lines, a tab between the two: kafka_pairs.txt of the report's code, or your own.
#   python data/pairs/prepare.py --input=kafka_pairs.txt --out=data/pairs/kafka --tokenizer=bpe:7000 \
#     --val_fraction=0.013
#   python train.py config/report/kafka_next.py
#   python translate.py out/report_kafka_next --text="He had said nothing."
# What to expect: 16,229,376 parameters. 7,634 pairs, about 100 of them validation.
# --dry_run=True prints a plan without the file.
# As in the report: ReLU, sizes, vocabulary, biases, dropout, batch, Adam with its constant rate, 50 epochs
# of 118 steps.
# Departures: norms stand before each part, not after it; source, target and head share one matrix, where
# the report has three; weights are drawn as GPT-2's, not by Xavier's rule; Adam's epsilon is 1e-8, not
# 1e-9; GPT-2's pattern splits the text into words, not GPT-4's.
out_dir = "out/report_kafka_next"
dataset = "data/pairs/kafka"
vocab_size = 7_000

encoder_layers = 3
n_layer = 3
n_head = 8
n_embd = 512
ffn_hidden = 512
block_size = 768
position = "sinusoidal"
mlp_activation = "relu"
bias = True
dropout = 0.1

batch_size = 64
gradient_accumulation_steps = 1
max_iters = 5_900
learning_rate = 1e-4
min_lr = 1e-4  # constant
lr_schedule = "linear"
warmup_iters = 0
weight_decay = 0.0
beta2 = 0.98
grad_clip = 0.0
eval_interval = 118
eval_tokens = 98_304
checkpoint_interval = 118

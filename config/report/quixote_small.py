# Don Quixote, the small decoder-only model of Lavik's report "Transformer".
# You bring the book as a text: quixote_oneline.txt of the report's code, 2.2 MB, or another edition.
#   python data/text/prepare.py --input=quixote.txt --out=data/text/quixote --tokenizer=bpe:15000 \
#     --split=contiguous --val_fraction=0.1
#   python train.py config/report/quixote_small.py
#   python sample.py out/report_quixote_small --start="And so" --temperature=0.8 --max_new_tokens=100
# What to expect: 16,495,488 parameters. It learns the book by heart: 2.6 billion tokens are about 5,000
# passes. The report has no validation: its training loss ends at 0.29. --dry_run=True prints a plan.
# As in the report: sizes, dropout, batch, AdamW, schedule. Departures: the embedding is not multiplied by
# sqrt(384); the rate is a cosine (in the report's code it compounds from step to step); Adam's epsilon is
# 1e-8, not 1e-9; a tenth of the book is validation; the tokenizer of the report has 24,540 tokens, of which
# ours stops at those that occur twice.
out_dir = "out/report_quixote_small"
dataset = "data/text/quixote"
vocab_size = 15_000

n_layer = 6
n_head = 6
n_embd = 384
block_size = 256
dropout = 0.2

batch_size = 64
gradient_accumulation_steps = 32
max_iters = 5000
learning_rate = 1e-3
min_lr = 1e-4
warmup_iters = 100
beta2 = 0.99
eval_interval = 250
eval_tokens = 49_152
checkpoint_interval = 250

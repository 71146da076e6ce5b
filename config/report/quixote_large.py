# Don Quixote, the large decoder-only model of Lavik's report "Transformer": GPT-2's size.
# You bring the book as a text: see config/report/quixote_small.py, whose data set this is.
#   python train.py config/report/quixote_large.py
# What to expect: 97,291,008 parameters. The report stopped its run at step 1,000 of 600,000, at a training
# loss of 4.78, within the warmup: Ctrl-C stops with a checkpoint. --dry_run=True prints a plan.
# As in the report: sizes, batch, AdamW, schedule. Departures: the embedding is not multiplied by sqrt(768);
# the rate is a cosine (in the report's code it compounds from step to step); Adam's epsilon is 1e-8, not
# 1e-9; a tenth of the book is validation; the tokenizer of the report has 24,281 tokens, of which ours
# stops at those that occur twice.
out_dir = "out/report_quixote_large"
dataset = "data/text/quixote"
vocab_size = 15_000

n_layer = 12
n_head = 12
n_embd = 768
block_size = 1024

batch_size = 12
gradient_accumulation_steps = 40
max_iters = 600_000
learning_rate = 6e-4
min_lr = 6e-5
warmup_iters = 2000
eval_interval = 250
eval_tokens = 49_152
checkpoint_interval = 250

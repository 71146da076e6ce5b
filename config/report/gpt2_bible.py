# GPT-2 fine-tuned on the Bible, as in section 7.1 of Lavik's report "Transformer".
#   python data/bible/prepare.py --unit=chapter
#   python train.py config/report/gpt2_bible.py
#   python sample.py out/report_gpt2_bible --start="In the beginning" --beams=5 --no_repeat_ngram=2
# The weights come from the Hugging Face hub; --init_from also takes a folder of them. The report's other
# texts are yours to bring, with data/text/prepare.py --tokenizer=gpt2 and --dataset=data/text/mine:
# Don Quixote (--max_iters=1305) and Kafka (--max_iters=585).
# What to expect: the report prints fluent texts in the Bible's style, and no measurement. --dry_run=True
# prints a plan without the hub.
# As in the report: batches of eight pieces of about 250 tokens, five passes, AdamW at 5e-5 and linearly to
# 0, no decay, GPT-2's dropout. Departures: the report cuts the text every 1,024 characters and pads each
# piece to 1,024 tokens, here windows of 256 tokens are full; one chapter in twenty is validation.
init_from = "gpt2"
out_dir = "out/report_gpt2_bible"
dataset = "data/bible/chapter_gpt2"

block_size = 256
dropout = 0.1

batch_size = 8
gradient_accumulation_steps = 1
max_iters = 2250
learning_rate = 5e-5
min_lr = 0.0
lr_schedule = "linear"
warmup_iters = 0
weight_decay = 0.0
beta2 = 0.999
eval_interval = 450
eval_tokens = 49_152
checkpoint_interval = 450

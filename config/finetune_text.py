# Continues to train a finished model on new text: here the demo's dense model, from speeches to
# encyclopedia articles. Prepare the new text with the model's tokenizer. The architecture comes from the
# checkpoint.
#   make demo
#   python data/wikipedia_vital/prepare.py --tokenizer=data/sotu/bpe4096/tokenizer.json \
#     --out=data/wikipedia_vital/demo
#   python train.py config/finetune_text.py
# The same with the published GPT-2 on your own text, at least 100 KB of it. The last tenth of the file is
# validation. --init_from also takes a model folder, such as export.py and `hf download` write.
#   python data/text/prepare.py --input=mine.txt --out=data/text/mine --split=contiguous --val_fraction=0.1
#   python train.py config/finetune_text.py --init_from=gpt2 --dataset=data/text/mine --out_dir=out/mine
# What to expect: the first evaluation shows the old model on the new text; the loss falls from there. The
# learning rates are a tenth of those of pretraining: enough to learn the new text without forgetting the
# old one at once.
init_from = "out/demo_dense"
dataset = "data/wikipedia_vital/demo"
out_dir = "out/finetune_text"

batch_size = 8
gradient_accumulation_steps = 1
max_iters = 300
learning_rate = 1.5e-4
min_lr = 1.5e-5
warmup_iters = 15
weight_decay = 0.01
log_interval = 10
eval_interval = 50
eval_tokens = 65_536
checkpoint_interval = 100

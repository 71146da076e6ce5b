# A small translator, decoder-only: the model reads source, end-of-text, target as one text.
#   python data/libreoffice/prepare.py --language=fr --tokenizer=bpe:8192
#   python train.py config/translation.py
#   python translate.py out/translation --pairs=data/libreoffice/en_fr_bpe8192/val.bin --beams=5
# The same data and recipe with an encoder of two blocks and a decoder of two:
#   python train.py config/translation.py --encoder_layers=2 --n_layer=2 --out_dir=out/translation_encoder
# What to expect: results/translation has models like it. Label smoothing, dropout and schedule are those of
# Vaswani et al. 2017. Sinusoidal positions go with every attention. The loss is of the targets alone; a
# batch is 64 pairs.
out_dir = "out/translation"
dataset = "data/libreoffice/en_fr_bpe8192"

n_layer = 4
n_head = 4
n_embd = 128
block_size = 128
position = "sinusoidal"
dropout = 0.1

batch_size = 64
gradient_accumulation_steps = 1
max_iters = 6000
learning_rate = 2e-3
lr_schedule = "rsqrt"
warmup_iters = 400
min_lr = 0.0
beta2 = 0.98
label_smoothing = 0.1
log_interval = 20
eval_interval = 500
eval_tokens = 131_072
checkpoint_interval = 500

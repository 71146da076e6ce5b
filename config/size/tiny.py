# Overlay: a tiny size for trying things out, a minute on a laptop, for any model:
#   python train.py config/cofrgenet_f.py config/size/tiny.py --out_dir=out/tiny --max_iters=200 \
#     --warmup_iters=20 --gradient_accumulation_steps=1 --dataset=data/sotu/bpe4096
n_layer = 2
n_head = 2
n_kv_head = None
n_embd = 64
block_size = 64
ffn_hidden = None

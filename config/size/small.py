# Overlay: the size of GPT-2 small (124M parameters as a dense Transformer), for any model:
#   python train.py config/cofrgenet_f.py config/size/small.py --out_dir=out/cofrgenet_f_small
n_layer = 12
n_head = 12
n_kv_head = None
n_embd = 768
block_size = 1024
ffn_hidden = None

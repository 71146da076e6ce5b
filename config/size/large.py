# Overlay: the size of GPT-2 large (774M parameters as a dense Transformer), for any model:
#   python train.py config/cofrgenet_f.py config/size/large.py --out_dir=out/cofrgenet_f_large
n_layer = 36
n_head = 20
n_kv_head = None
n_embd = 1280
block_size = 1024
ffn_hidden = None

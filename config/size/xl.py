# Overlay: the size of GPT-2 xl (1.5B parameters as a dense Transformer), for any model:
#   python train.py config/cofrgenet_f.py config/size/xl.py --out_dir=out/cofrgenet_f_xl
n_layer = 48
n_head = 25
n_kv_head = None
n_embd = 1600
block_size = 1024
ffn_hidden = None

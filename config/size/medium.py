# Overlay: the size of GPT-2 medium (350M parameters as a dense Transformer), for any model:
#   python train.py config/cofrgenet_f.py config/size/medium.py --out_dir=out/cofrgenet_f_medium
n_layer = 24
n_head = 16
n_kv_head = None
n_embd = 1024
block_size = 1024
ffn_hidden = None

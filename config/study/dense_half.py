# Overlay:
# A standard Transformer of the full model's size and depth: six layers, SwiGLU, multi-query attention.
#   python train.py config/study/dense.py config/study/dense_half.py config/study/rope.py --out_dir=out/arm
n_layer = 6
n_kv_head = 1
ffn = "swiglu"
ffn_hidden = 116

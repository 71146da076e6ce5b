# Overlay: Multi-query attention and a narrower MLP: a standard Transformer of CoFrGeNet-A's size.
#   python train.py config/study/dense.py config/study/dense_mqa.py config/study/rope.py --out_dir=out/arm
n_kv_head = 1
ffn_hidden = 452

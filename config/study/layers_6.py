# Overlay: Six layers instead of five, for a model whose layers are smaller.
#   python train.py config/study/dense.py config/study/cattn_m.py config/study/layers_6.py --out_dir=out/arm
n_layer = 6

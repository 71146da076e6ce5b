# Overlay: Six layers instead of five with as many parameters: the effect of depth alone.
#   python train.py config/study/dense.py config/study/dense_deep.py config/study/rope.py --out_dir=out/arm
n_layer = 6
ffn_hidden = 384

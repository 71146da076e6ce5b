# Six layers in place of five with as many parameters: what depth alone does.
#   python train.py config/study/dense.py config/study/dense_deep.py config/study/rope.py --out_dir=out/arm
n_layer = 6
ffn_hidden = 384

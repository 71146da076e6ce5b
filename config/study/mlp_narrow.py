# Overlay: An MLP with as many parameters as cffn_added.
#   python train.py config/study/dense.py config/study/mlp_narrow.py --out_dir=out/arm
ffn_hidden = 142

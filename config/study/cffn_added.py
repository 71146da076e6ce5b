# Overlay: Our own feed-forward layer: the product of two linear maps, plus ladders.
#   python train.py config/study/dense.py config/study/cffn_added.py --out_dir=out/arm
ffn = "cffn_added"

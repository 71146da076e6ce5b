# Ours: ladders beside the product of two linear maps.
#   python train.py config/study/dense.py config/study/cffn_added.py --out_dir=out/arm
ffn = "cffn_added"

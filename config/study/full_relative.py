# Overlay: CAttnM with four heads and columns by distance, and cffn_added.
#   python train.py config/study/dense.py config/study/full_relative.py --out_dir=out/arm
attention = "cattn_relative"
cattn_heads = 4
ffn = "cffn_added"

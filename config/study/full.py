# CAttnM with four heads, and cffn_added.
#   python train.py config/study/dense.py config/study/full.py --out_dir=out/arm
attention = "cattn_m"
cattn_heads = 4
ffn = "cffn_added"

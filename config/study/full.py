# Overlay: CAttnM with four heads, and cffn_added as feed-forward layer.
#   python train.py config/study/dense.py config/study/full.py --out_dir=out/arm
attention = "cattn_m"
cattn_heads = 4
ffn = "cffn_added"

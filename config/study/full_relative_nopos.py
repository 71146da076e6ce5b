# Overlay: config/study/full_relative.py without positional encoding.
#   python train.py config/study/dense.py config/study/full_relative_nopos.py --out_dir=out/arm
attention = "cattn_relative"
cattn_heads = 4
ffn = "cffn_added"
position = "none"

# CAttnC with 16 heads, and cffn_added.
#   python train.py config/study/dense.py config/study/full_c.py --out_dir=out/arm
attention = "cattn_c"
cattn_heads = 16
ffn = "cffn_added"

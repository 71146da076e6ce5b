# CAttnC with 16 heads, without an embedding of positions.
#   python train.py config/study/dense.py config/study/cattn_c_nopos.py --out_dir=out/arm
attention = "cattn_c"
cattn_heads = 16
position = "none"

# CAttnC with 16 heads.
#   python train.py config/study/dense.py config/study/cattn_c.py --out_dir=out/arm
attention = "cattn_c"
cattn_heads = 16

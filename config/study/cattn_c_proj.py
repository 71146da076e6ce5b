# CAttnC with 8 heads and an output projection, without an embedding of positions.
#   python train.py config/study/dense.py config/study/cattn_c_proj.py --out_dir=out/arm
attention = "cattn_c"
cattn_heads = 8
cattn_proj = True
position = "none"

# Linear scores in four heads, each of the rank that CAttnM's have.
#   python train.py config/study/base.py config/study/cattn_m_heads_control.py --out_dir=out/arm
attention = "cattn_m"
cattn_heads = 4
cf_control = True

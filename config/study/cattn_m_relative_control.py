# CAttnM with four heads, columns by distance, without fractions in the scores.
#   python train.py config/study/base.py config/study/cattn_m_relative_control.py --out_dir=out/arm
attention = "cattn_m"
cattn_heads = 4
cattn_relative = True
cf_control = True

# CAttnM with four heads, constants for the fractions in its scores.
#   python train.py config/study/base.py config/study/cattn_m_heads_constant.py --out_dir=out/arm
attention = "cattn_m"
cattn_heads = 4
cf_control = True
cf_control_constant = True

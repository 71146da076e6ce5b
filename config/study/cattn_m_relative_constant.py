# CAttnM with four heads and columns by distance, constants for the fractions in its scores.
#   python train.py config/study/base.py config/study/cattn_m_relative_constant.py --out_dir=out/arm
attention = "cattn_m"
cattn_heads = 4
cattn_relative = True
cf_control = True
cf_control_constant = True

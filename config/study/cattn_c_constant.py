# CAttnC with 16 heads, constants for its fractions.
#   python train.py config/study/base.py config/study/cattn_c_constant.py --out_dir=out/arm
attention = "cattn_c"
cattn_heads = 16
cf_control = True
cf_control_constant = True

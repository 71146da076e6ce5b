# CAttnC with 16 heads, without fractions.
#   python train.py config/study/base.py config/study/cattn_c_control.py --out_dir=out/arm
attention = "cattn_c"
cattn_heads = 16
cf_control = True

# CAttnM with four heads, and cffn_added, all fractions left out.
#   python train.py config/study/base.py config/study/full_control.py --out_dir=out/arm
attention = "cattn_m"
cattn_heads = 4
ffn = "cffn_added"
cf_control = True

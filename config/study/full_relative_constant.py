# Both of full_relative with constants for their fractions.
#   python train.py config/study/base.py config/study/full_relative_constant.py --out_dir=out/arm
attention = "cattn_m"
cattn_heads = 4
cattn_relative = True
ffn = "cffn_added"
cf_control = True
cf_control_constant = True

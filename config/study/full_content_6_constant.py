# full_content_6 with a constant in place of each fraction.
#   python train.py config/study/base.py config/study/full_content_6_constant.py --out_dir=out/arm
attention = "cattn_m"
cattn_heads = 4
cattn_relative = True
cattn_content = True
cattn_proj = True
position = "none"
ffn = "cffn_added"
n_layer = 6
cf_control = True
cf_control_constant = True

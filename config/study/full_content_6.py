# full_content with six layers, and fractions of one partial denominator.
#   python train.py config/study/base.py config/study/full_content_6.py --out_dir=out/arm
attention = "cattn_m"
cattn_heads = 4
cattn_relative = True
cattn_content = True
cattn_proj = True
position = "none"
ffn = "cffn_added"
cf_depth = 1
n_layer = 6

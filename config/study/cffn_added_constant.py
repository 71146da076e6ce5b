# cffn_added with a constant for its fractions.
#   python train.py config/study/base.py config/study/cffn_added_constant.py --out_dir=out/arm
ffn = "cffn_added"
cf_control = True
cf_control_constant = True

# cattn_c_nopos with a constant in place of each fraction.
#   python train.py config/study/base.py config/study/cattn_c_nopos_constant.py --out_dir=out/arm
attention = "cattn_c"
cattn_heads = 16
position = "none"
cf_control = True
cf_control_constant = True

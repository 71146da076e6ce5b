# CAttnU with constants for its fractions.
#   python train.py config/study/base.py config/study/cattn_u_constant.py --out_dir=out/arm
attention = "cattn_u"
cf_control = True
cf_control_constant = True

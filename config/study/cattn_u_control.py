# CAttnU without its fractions.
#   python train.py config/study/base.py config/study/cattn_u_control.py --out_dir=out/arm
attention = "cattn_u"
cf_control = True

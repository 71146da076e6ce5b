# Linear scores of the rank that CAttnM's have.
#   python train.py config/study/base.py config/study/cattn_m_control.py --out_dir=out/arm
attention = "cattn_m"
cf_control = True

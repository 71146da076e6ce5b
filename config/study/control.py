# A model without its fractions: every z is 0.
#   python train.py config/study/dense.py config/study/cattn_m.py config/study/control.py --out_dir=out/arm
cf_control = "zero"

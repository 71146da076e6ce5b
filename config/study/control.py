# Overlay: Control for any model with ladders: every fraction z is 0.
#   python train.py config/study/dense.py config/study/cattn_m.py config/study/control.py --out_dir=out/arm
cf_control = "zero"

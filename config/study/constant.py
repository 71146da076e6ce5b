# Overlay: Control for any model with ladders: a learned constant replaces each fraction.
#   python train.py config/study/dense.py config/study/cattn_m.py config/study/constant.py --out_dir=out/arm
cf_control = "constant"

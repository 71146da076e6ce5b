# A learned constant in place of each fraction of a model.
#   python train.py config/study/dense.py config/study/cattn_m.py config/study/constant.py --out_dir=out/arm
cf_control = "constant"

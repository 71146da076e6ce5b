# Overlay: Ladders of depth 1, for any model with ladders.
#   python train.py config/study/dense.py config/study/cattn_m.py config/study/depth_1.py --out_dir=out/arm
cf_depth = 1

# Overlay: CAttnM with scores of rank 7 and one head.
#   python train.py config/study/dense.py config/study/cattn_m.py --out_dir=out/arm
attention = "cattn_m"

# Overlay: CAttnU as attention.
#   python train.py config/study/dense.py config/study/cattn_u.py --out_dir=out/arm
attention = "cattn_u"

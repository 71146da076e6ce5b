# Overlay: CAttnM as printed: a token does not attend to itself.
#   python train.py config/study/dense.py config/study/cattn_m.py config/study/strict.py --out_dir=out/arm
cattn_strict = True
